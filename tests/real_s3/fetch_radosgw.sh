#!/usr/bin/env bash
# Fetch a Ceph radosgw and what it needs into a directory, installing nothing: for Debian and its kin.
# usage: tests/real_s3/fetch_radosgw.sh DIRECTORY     (then: WAL3_CEPH_ROOT=DIRECTORY make test-s3-real)
set -euo pipefail

WANTED=(radosgw ceph-mon ceph-osd)

fail() {
    echo "fetch_radosgw: $*" >&2
    exit 1
}

[[ $# -eq 1 ]] || fail "expected one argument, the directory to unpack into, found $#"
for program in apt-get dpkg-deb; do
    command -v "$program" >/dev/null || fail "expected $program, as on Debian or Ubuntu, found none; install Ceph's ${WANTED[*]} in your system's way instead"
done
mkdir -p "$1"
root=$(cd "$1" && pwd)

# What apt would install here and now; a simulation needs no privileges and changes nothing.
plan=$(LC_ALL=C apt-get install --simulate --no-install-recommends "${WANTED[@]}") ||
    fail "apt-get knows no ${WANTED[*]}: run apt-get update (as root) and try again"
mapfile -t packages < <(awk '$1 == "Inst" {print $2}' <<<"$plan")
if [[ ${#packages[@]} -eq 0 ]]; then
    echo "fetch_radosgw: ${WANTED[*]} are installed already: run make test-s3-real"
    exit 0
fi

archives=$(mktemp -d "$root/.archives.XXXXXX")
trap 'rm -rf "$archives"' EXIT
# As root, apt would hand the download to a user of its own, who may not write here.
(cd "$archives" && apt-get download -qq -o APT::Sandbox::User="$(id -un)" "${packages[@]}")
for archive in "$archives"/*.deb; do
    dpkg-deb -x "$archive" "$root"
done
# Unpacked as root, some programs (sudo) would run as root for everybody.
find "$root" -type f -perm /6000 -exec chmod ug-s {} +
echo "fetch_radosgw: ${#packages[@]} packages, $(du -sh --exclude='.archives.*' "$root" | cut -f1), unpacked into $root"
echo "now: WAL3_CEPH_ROOT=$root make test-s3-real"
