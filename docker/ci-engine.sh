#!/usr/bin/env bash
# A Docker engine and a base image for machines that have neither a running engine nor a registry to pull from: for CI on
# Debian 12, as root. It touches no network settings, so its containers share the host's network or one that they make.
#
#   eval "$(docker/ci-engine.sh start DIR)"    starts it, and prints what the commands need that follow: DOCKER_HOST and others
#   docker/ci-engine.sh stop DIR               stops it
#
# DIR holds its socket, process id and log. Images and the steps of builds stay in ~/.cache/idist-workbench/docker.
set -euo pipefail

die() {
  printf 'ci-engine.sh: %s\n' "$*" >&2
  exit 1
}

[ $# -eq 2 ] || die "usage: ci-engine.sh start|stop DIR"
dir=$(realpath -m "$2")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/idist-workbench
base=localhost/debian:bookworm-slim
export DOCKER_HOST=unix://$dir/docker.sock PATH=/usr/bin:/usr/sbin:/bin:/sbin:$PATH

within() { # within SECONDS WHAT COMMAND...
  local deadline=$((SECONDS + $1))
  until "${@:3}" >/dev/null 2>&1; do
    [ $SECONDS -lt "$deadline" ] || die "$2: not within $1 seconds; its last lines: $(tail -n 3 "$dir/dockerd.log")"
    sleep 0.2
  done
}

packages() {
  local missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
  [ ${#missing[@]} -gt 0 ] || return 0
  apt-get update -q && apt-get install -qy --no-install-recommends "${missing[@]}"
}

# The base image, from the package mirror of this machine; whatever differs from build to build is left out.
make_base() {
  local work
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # the folder of now is meant
  trap "rm -rf '$work'" EXIT
  # shellcheck disable=SC2016  # apt fills these in
  apt-get indextargets --format 'deb $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' | sort -u >"$work/sources.list"
  mmdebstrap --quiet --mode=root --variant=minbase --include=ca-certificates --aptopt='Acquire::Check-Valid-Until "false"' \
    --customize-hook='cd "$1" && rm -rf etc/resolv.conf etc/hostname var/log/*.log var/log/apt/* var/cache/ldconfig/aux-cache' \
    bookworm "$work/base.tar" "$work/sources.list"
  docker import -c 'CMD ["bash"]' -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    "$work/base.tar" "$base"
}

start() {
  [ "$(id -u)" -eq 0 ] || die "starting dockerd needs root"
  packages
  mkdir -p "$dir"
  if ! docker version >/dev/null 2>&1; then
    # one data folder serves one engine: a second waits until the first has stopped
    within 600 "another engine uses $cache/docker" flock --nonblock "$cache/docker.lock" true
    setsid flock --no-fork "$cache/docker.lock" dockerd -H "$DOCKER_HOST" --data-root "$cache/docker" --exec-root "$dir/exec" \
      -p "$dir/dockerd.pid" --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --bridge=none \
      --storage-driver overlay2 >"$dir/dockerd.log" 2>&1 </dev/null &
    within 60 "dockerd does not answer" docker version
  fi
  docker image inspect "$base" >/dev/null 2>&1 || make_base
}

case $1 in
  start)
    mkdir -p "$cache"
    start >&2
    # Debian's own client: it has BuildKit, other clients on the PATH need a plugin for it
    mkdir -p "$dir/bin"
    ln -sf /usr/bin/docker "$dir/bin/docker"
    echo "export DOCKER_HOST=$DOCKER_HOST DOCKER_BUILDKIT=1 BASE_IMAGE=$base PATH=$dir/bin:\$PATH"
    ;;
  stop)
    [ -e "$dir/dockerd.pid" ] || exit 0
    # what older builds have left
    docker image prune --force >/dev/null
    docker builder prune --force --keep-storage 12GB >/dev/null
    kill "$(cat "$dir/dockerd.pid")"
    within 60 "dockerd does not stop" test ! -e "$dir/dockerd.pid"
    ! mountpoint -q "$dir/exec/netns/default" || umount "$dir/exec/netns/default"
    ;;
  *) die "unknown '$1': use start or stop" ;;
esac
