# shellcheck shell=bash
# A Ceph cluster on loopback: one monitor, one OSD that keeps its objects in memory, one radosgw. Sourced by run.sh.
#   find_ceph       checks that the programs are there, or says how to get them
#   start_radosgw   exports WAL3_TEST_S3_ENDPOINT, WAL3_TEST_S3_OPTIONS, WAL3_TEST_S3_USERS and the AWS variables
#   stop_radosgw    kills what was started and removes its directory

ceph_programs=(ceph-mon ceph-osd ceph-authtool monmaptool ceph radosgw radosgw-admin)
ceph_environment=()
ceph_settings=()
ceph_pids=()
ceph_folder=
ceph_started_s=$SECONDS
ceph_wait_s=120

find_ceph() {
    local program missing=()
    if [[ -n ${WAL3_CEPH_ROOT:-} ]]; then
        use_unpacked_ceph "$WAL3_CEPH_ROOT"
    fi
    for program in "${ceph_programs[@]}"; do
        run_ceph which "$program" >/dev/null 2>&1 || missing+=("$program")
    done
    [[ ${#missing[@]} -eq 0 ]] && return
    cat >&2 <<TEXT
test-s3-real: no S3 server to test against: expected ${ceph_programs[*]} in ${WAL3_CEPH_ROOT:-the PATH}, missing ${missing[*]}. Do one of
  - name a server:                      WAL3_TEST_S3_ENDPOINT=http://host:port AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… make test-s3-real
  - install Ceph (Debian, as root):     apt-get install radosgw ceph-mon ceph-osd
  - unpack it aside, without privilege: tests/real_s3/fetch_radosgw.sh DIRECTORY; WAL3_CEPH_ROOT=DIRECTORY make test-s3-real
TEXT
    return 1
}

# Packages unpacked with dpkg-deb -x expect to be in /: every place they look in has to be named.
use_unpacked_ceph() {
    local root libraries
    root=$(realpath -m "$1")
    libraries=$(dirname "$(find "$root/usr/lib" -name 'librados.so.2' -print -quit 2>/dev/null)")
    ceph_environment=(
        "PATH=$root/usr/bin:$root/usr/sbin:$PATH"
        "LD_LIBRARY_PATH=$libraries:$libraries/ceph:${libraries/#"$root/usr"/"$root"}"
        "PYTHONPATH=$root/usr/lib/python3/dist-packages"
    )
    ceph_settings=(
        "plugin dir = $libraries/ceph"
        "erasure code dir = $libraries/ceph/erasure-code"
        "osd class dir = $libraries/rados-classes"
    )
}

run_ceph() {
    env -u PYTHONHOME "${ceph_environment[@]}" "$@"
}

start_radosgw() {
    local mon_port s3_port fsid
    ceph_folder=$(mktemp -d "${TMPDIR:-/tmp}/wal3-radosgw.XXXXXX")
    read -r mon_port s3_port < <(free_ports)
    fsid=$(</proc/sys/kernel/random/uuid)
    write_ceph_conf "$fsid" "$mon_port" "$s3_port"
    export CEPH_CONF=$ceph_folder/ceph.conf
    export CEPH_ARGS=
    start_mon "$fsid" "$mon_port"
    start_osd
    make_users
    start_daemon radosgw -n client.wal3
    wait_for "radosgw to answer" accepts_connections "$s3_port"
    export WAL3_TEST_S3_ENDPOINT=http://127.0.0.1:$s3_port
    export WAL3_TEST_S3_OPTIONS='?etags=unquoted'
    echo "$(run_ceph radosgw --version): up after $((SECONDS - ceph_started_s)) s"
}

accepts_connections() {
    (: <"/dev/tcp/127.0.0.1/$1")
}

stop_radosgw() {
    local status=$?
    trap '' INT TERM
    if [[ ${#ceph_pids[@]} -gt 0 ]]; then
        # Nothing here is worth an orderly end.
        kill -KILL "${ceph_pids[@]}" 2>/dev/null || true
        wait "${ceph_pids[@]}" 2>/dev/null || true
    fi
    [[ -n $ceph_folder ]] && rm -rf "$ceph_folder"
    exit "$status"
}

# Held open together, so that they differ.
free_ports() {
    python3 -c '
import socket
with socket.socket() as one, socket.socket() as two:
    one.bind(("127.0.0.1", 0))
    two.bind(("127.0.0.1", 0))
    print(one.getsockname()[1], two.getsockname()[1])
'
}

write_ceph_conf() {
    cat >"$ceph_folder/ceph.conf" <<TEXT
[global]
fsid = $1
mon host = v2:127.0.0.1:$2/0
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv4 = true
ms bind ipv6 = false
run dir = $ceph_folder
admin socket =
pid file =
log file = $ceph_folder/\$type.log
log to stderr = false
mon cluster log file = $ceph_folder/cluster.log
crash dir = $ceph_folder/crash
keyring = $ceph_folder/keyring
$(printf '%s\n' "${ceph_settings[@]}")
[mon]
mon data = $ceph_folder/mon
mon initial members = a
mon allow pool size one = true
mon data avail crit = 1
paxos propose interval = 0.05
[osd]
osd data = $ceph_folder/osd
osd objectstore = memstore
memstore device bytes = 4294967296
osd class load list = *
osd class default list = *
osd crush update on start = true
[client]
rgw frontends = beast endpoint=127.0.0.1:$3 tcp_nodelay=1
rgw data = $ceph_folder/rgw
[global]
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pgp num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
TEXT
    mkdir "$ceph_folder"/{mon,osd,rgw,crash}
}

start_mon() {
    make_keyring
    run_ceph monmaptool --create --fsid "$1" --addv a "[v2:127.0.0.1:$2]" "$ceph_folder/monmap" >/dev/null
    run_ceph ceph-mon --mkfs -i a --monmap "$ceph_folder/monmap" --keyring "$ceph_folder/keyring"
    start_daemon ceph-mon -i a
    wait_for "the monitor to answer" run_ceph ceph --connect-timeout 5 status
}

# One keyring for all of them; the monitor takes its keys over as it is made.
make_keyring() {
    local name
    : >"$ceph_folder/keyring"
    for name in mon. osd.0 client.admin client.wal3; do
        run_ceph ceph-authtool "$ceph_folder/keyring" --gen-key -n "$name" \
            --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *'
    done
}

start_osd() {
    local uuid
    uuid=$(</proc/sys/kernel/random/uuid)
    run_ceph ceph osd new "$uuid" 0 >/dev/null
    run_ceph ceph-osd -i 0 --mkfs --osd-uuid "$uuid" >"$ceph_folder/mkfs.out" 2>&1 || give_up "ceph-osd --mkfs failed"
    start_daemon ceph-osd -i 0
    wait_for "the OSD to be up" osd_is_up
}

osd_is_up() {
    run_ceph ceph --connect-timeout 5 osd stat | grep -q '1 up'
}

# One may do everything, and say what the others may: they have a user each for the roles in deploy/iam.
make_users() {
    local role
    export AWS_ACCESS_KEY_ID=wal3 AWS_SECRET_ACCESS_KEY=wal3-tests AWS_DEFAULT_REGION=us-east-1
    unset AWS_SESSION_TOKEN AWS_PROFILE
    make_user "$AWS_ACCESS_KEY_ID" --caps 'user-policy=*'
    export WAL3_TEST_S3_USERS=
    for role in deploy/iam/*.json; do
        role=$(basename "$role" .json)
        make_user "$role"
        WAL3_TEST_S3_USERS+="$role "
    done
}

# Its access key is its name.
make_user() {
    run_ceph radosgw-admin -n client.wal3 user create --uid "$1" --display-name "$1" \
        --access-key "$1" --secret-key "$AWS_SECRET_ACCESS_KEY" "${@:2}" >"$ceph_folder/user" 2>&1 ||
        give_up "radosgw-admin could not make a user: $(tail -5 "$ceph_folder/user")"
}

# The kernel kills a daemon whose script died without a chance to.
start_daemon() {
    # Not by run_ceph: a function in the background is one more process, and its id would be the one we get.
    env -u PYTHONHOME "${ceph_environment[@]}" setpriv --pdeathsig KILL "$1" -f "${@:2}" >"$ceph_folder/$1.out" 2>&1 &
    ceph_pids+=($!)
}

wait_for() {
    local deadline_s=$((SECONDS + ceph_wait_s)) pid
    until "${@:2}" >/dev/null 2>&1; do
        for pid in "${ceph_pids[@]}"; do
            kill -0 "$pid" 2>/dev/null || give_up "a daemon died while we waited for $1"
        done
        [[ $SECONDS -lt $deadline_s ]] || give_up "waited $ceph_wait_s s for $1"
        sleep 0.2
    done
}

give_up() {
    echo "test-s3-real: $1; the daemons' last words:" >&2
    tail -n 15 "$ceph_folder"/*.out "$ceph_folder"/*.log >&2 2>/dev/null || true
    exit 1
}
