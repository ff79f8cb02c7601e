#!/usr/bin/env bash
# One process, without any distribution.
#
#   launchers/plain.sh -m reference.cifar10 run
set -euo pipefail
# shellcheck source=launchers/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

start python "$@"
