#!/usr/bin/env bash
# Run the store suite, the S3 specification and the policies of deploy/iam against a real S3 server.
# usage: tests/real_s3/run.sh PYTEST [PYTEST ARGUMENT…]
#
# The server is the one named by WAL3_TEST_S3_ENDPOINT, with credentials from the usual AWS variables and
# WAL3_TEST_S3_OPTIONS appended to every store URL (for instance ?etags=unquoted); else a Ceph radosgw of our
# own on 127.0.0.1, from programs in WAL3_CEPH_ROOT or on the PATH, that is gone when this script ends.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
if [[ $# -eq 0 ]]; then
    echo "usage: $0 PYTEST [PYTEST ARGUMENT…]" >&2
    exit 2
fi

if [[ -z ${WAL3_TEST_S3_ENDPOINT:-} ]]; then
    # shellcheck source=tests/real_s3/radosgw.sh
    source "$here/radosgw.sh"
    find_ceph
    trap stop_radosgw EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    start_radosgw
fi

echo "S3 server: $WAL3_TEST_S3_ENDPOINT ${WAL3_TEST_S3_OPTIONS:-}"
"$1" tests/store tests/spec tests/real_s3 -k s3 "${@:2}"
