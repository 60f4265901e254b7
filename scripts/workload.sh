# shellcheck shell=bash
# For scripts that source this: the example workload while they run, and files of their own ($files), both gone at the end.

files=$(mktemp -d)
child=
# shellcheck disable=SC2317,SC2329 # The traps call it.
clean_up() {
    trap - EXIT
    if [ -n "$child" ]; then
        kill -TERM "$child" 2>/dev/null || true
        # The workload takes its cgroups away before it ends.
        wait "$child" 2>/dev/null || true
    fi
    rm -rf "$files"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# start_workload COMMAND...: starts it, and leaves in $ready what it says when it is: `ready` if it has cgroups of its own.
start_workload() {
    exec 3< <(exec "$@")
    child=$!
    ready=
    until [[ $ready == ready* ]]; do
        read -r -t 30 -u 3 ready || return 1
    done
}
