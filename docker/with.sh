#!/usr/bin/env bash
# Runs a command in the environment of a backend, which is made first where it is missing (docker/env.sh).
#
#   docker/with.sh BACKEND [EXTRA...] -- COMMAND [ARGUMENT...]
#
# Environment: VENV_HOME (folder of the environments, default: the clone), DRY_RUN=1 (makes no environment), and what
# docker/env.sh understands.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=docker/common.sh
. "$here/common.sh"

home=${VENV_HOME:-$(dirname "$here")}
case ${1:-} in
  none | gloo | nccl) environment=(gloo "$home/.venv") ;;
  horovod) environment=(horovod "$home/.venv") ;;
  xla-tpu) environment=(xla "$home/.venv-xla") ;;
  *) die "unknown backend '${1:-}': use none, gloo, nccl, horovod or xla-tpu" ;;
esac
shift
while [ "${1:---}" != -- ]; do
  environment+=("$1")
  shift
done
[ $# -ge 2 ] || die "usage: with.sh BACKEND [EXTRA...] -- COMMAND [ARGUMENT...]"
shift

bin=${environment[1]}/bin
if [ "${DRY_RUN:-}" = 1 ]; then
  printf "PATH=%q:\$PATH " "$bin"
else
  run "$here/env.sh" "${environment[@]}"
fi
PATH=$bin:$PATH exec "$@"
