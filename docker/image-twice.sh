#!/usr/bin/env bash
# Builds the image of a backend twice with podman, each time from nothing and in an empty store, and compares the digests.
# Docker 20.10 cannot give two builds the same digest: its layers hold the times of their files.
#
#   docker/image-twice.sh BACKEND
#
# Environment: that of docker/image.sh. The base image and the wheelhouse come from docker where it has them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

die() {
  printf 'image-twice.sh: %s\n' "$*" >&2
  exit 2
}

[ $# -eq 1 ] || die "usage: image-twice.sh BACKEND"
image=$(docker/image.sh --name "$1")
command -v podman >/dev/null || die "this needs podman (Debian: podman, buildah)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
REVISION=$(git rev-parse HEAD)
export REVISION
# both builds are of the code of now, whatever is edited meanwhile
mkdir "$work/clone"
git ls-files --cached --others --exclude-standard -z | tar --null --files-from=- -c | tar -x -C "$work/clone"

for name in "${BASE_IMAGE:-}" "${WHEELHOUSE:-}"; do
  if [ -n "$name" ] && docker image inspect "$name" >/dev/null 2>&1; then
    docker save --output "$work/${name//[^a-z0-9]/-}.tar" "$name"
  fi
done

# build NUMBER: prints the digest
build() {
  local store=$work/store$1
  cat >"$work/podman" <<END
#!/bin/sh
exec podman --root '$store/root' --runroot '$store/run' --tmpdir '$store/tmp' --cgroup-manager cgroupfs "\$@"
END
  chmod +x "$work/podman"
  for archive in "$work"/*.tar; do
    [ ! -e "$archive" ] || "$work/podman" load --quiet --input "$archive" >&2
  done
  NO_CACHE=1 ENGINE=$work/podman XDG_CACHE_HOME=$work/cache BUILD_OPTIONS="--isolation chroot --layers=false --timestamp $SOURCE_DATE_EPOCH" \
    "$work/clone/docker/image.sh" "$2" >&2
  "$work/podman" image inspect --format '{{.Digest}}' "$image"
  ! mountpoint -q "$store/root/overlay" || umount "$store/root/overlay"
  rm -rf "$store"
}

first=$(build 1 "$1")
second=$(build 2 "$1")
echo "first build:  $first"
echo "second build: $second"
[ "$first" = "$second" ] || {
  echo "image-twice.sh: two builds of $image differ" >&2
  exit 1
}
