# Sourced by the environment scripts: messages, a lock, and commands that end when the script is told to end.
# shellcheck shell=bash

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# run COMMAND...: the command gets a process group of its own, so that Ctrl-C or SIGTERM ends its children too.
run() {
  local child status=0
  set -m
  "$@" </dev/null &
  child=$!
  set +m
  # shellcheck disable=SC2064  # the child's id of now is meant
  trap "kill -TERM -- -$child 2>/dev/null; exit 143" INT TERM HUP
  wait "$child" || status=$?
  trap - INT TERM HUP
  return "$status"
}

# lock FILE PYTHON: waits until no other process holds FILE; held until this script ends.
# Python instead of flock(1), which not every system has; the lock belongs to the open file, not to the process.
lock() {
  mkdir -p "$(dirname "$1")"
  exec 9>>"$1"
  "$2" -c 'import fcntl, sys
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print(sys.argv[1], "is in use by another process: waiting", file=sys.stderr)
    fcntl.flock(9, fcntl.LOCK_EX)' "$1"
}
