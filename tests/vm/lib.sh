# shellcheck shell=dash
# For guest tests: `. /lib/vm.sh`. Runs in busybox sh.

sim=/sys/kernel/debug/simpmu

# no_machine: takes the simulated machine away, once nobody has its events open any more.
no_machine() {
    [ -d /sys/module/simpmu ] || return 0
    for _ in $(seq 100); do
        rmmod simpmu 2>/dev/null && return 0
        sleep 0.1
    done
    echo "simpmu is still in use"
    return 1
}

# machine NAME [PARAMETER=VALUE...]: makes the guest this machine.
machine() {
    no_machine || return 1
    name=$1
    shift
    insmod /lib/simpmu.ko machine="$name" "$@" || {
        echo "insmod failed for $name"
        return 1
    }
    echo "machine $name $*"
}

# set_machine PARAMETER VALUE: changes a parameter of the machine while it runs.
set_machine() { echo "$2" >"/sys/module/simpmu/parameters/$1"; }

# in_cgroup PATH COMMAND...: runs it in a cgroup, which is made where it is missing.
in_cgroup() {
    mkdir -p "/sys/fs/cgroup/$1"
    (
        sh -c 'echo $PPID' >"/sys/fs/cgroup/$1/cgroup.procs"
        shift
        exec "$@"
    )
}

# count FIELD: ticks, sent, throttled or unlogged, since the log of samples was emptied.
count() { sed -n "s/.*\b$1=\([0-9]*\).*/\1/p" "$sim/counts"; }

# empty_logs: forgets what was asked and sent so far.
empty_logs() {
    echo >"$sim/samples"
    echo >"$sim/attrs"
}

fail() {
    echo "FAILED: $*"
    exit 1
}

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
    tries=$(($1 * 10))
    shift
    while [ "$tries" -gt 0 ]; do
        "$@" && return 0
        tries=$((tries - 1))
        sleep 0.1
    done
    return 1
}

# perf_sees MACHINE: `perf mem record` of the workload on that machine shows what was sent.
perf_sees() {
    machine "$1" || return 1
    in_cgroup workload.slice perf mem record -a -B -N -o perf.data -- workload -s 1 >said 2>&1 || {
        cat said
        return 1
    }
    perf script -i perf.data --ns -F tid,cpu,time,addr,data_src,weight >shown 2>said || {
        cat said
        return 1
    }
    vm-check perf shown
}

# perf_recorded MACHINE COMMAND...: `scxprof extract` finds the groups in what perf's command records there.
perf_recorded() {
    machine "$1" || return 1
    shift
    begin_workload workload.slice/cells || return 1
    "$@" >said 2>&1
    status=$?
    end_workload
    [ "$status" -eq 0 ] || {
        cat said
        return 1
    }
    scxprof extract --target-cpus 64 -f perf.data -v -o cells.json 2>said
    status=$?
    # Full rings are a loss of perf's; none is the hardware's.
    if { [ "$status" -ne 0 ] && [ "$status" -ne 4 ]; } || grep "lost by the hardware" said ||
        ! vm-check cells cells.json workload.slice/cells; then
        cat said
        return 1
    fi
}

# begin_workload CGROUP: starts the workload for as long as nobody ends it; returns when it works.
begin_workload() {
    in_cgroup "$1" workload -s 3600 >workload.out &
    wait_for 60 grep -qs ready workload.out
}

# end_workload: ends it and all that it started.
end_workload() {
    kill "$(pidof workload)" 2>/dev/null
    wait_for 60 no_workload
}

no_workload() { ! pidof workload grpB-0 grpB-1 >/dev/null; }

# configuration SOURCE USED: `scxprof run --source SOURCE` uses USED and tells the groups of the workload apart.
configuration() {
    begin_workload workload.slice/cells || return 1
    scxprof run --target-cpus 64 --source "$1" -t 6 -v -o cells.json 2>said
    status=$?
    end_workload
    [ "$status" -eq 0 ] || [ "$status" -eq 4 ] || {
        cat said
        return 1
    }
    grep -q "^Source: $2" said || {
        cat said
        return 1
    }
    [ "$2" = timer ] || vm-check cells cells.json workload.slice/cells || {
        cat said
        return 1
    }
}

# files_in_the_kernel SOURCE: with `--kernel`, that source knows which files the kernel copies from, beside processes with pipes. What it
# recorded is read again.
files_in_the_kernel() {
    in_cgroup workload.slice/files family readers 3600 >readers.out &
    in_cgroup workload.slice/files family ownpipes 3600 x >ownpipes.out &
    wait_for 60 grep -qs ready readers.out && wait_for 60 grep -qs ready ownpipes.out || return 1
    scxprof record --source "$1" --kernel -t 8 -o files.tar.gz >said 2>&1
    status=$?
    killall family
    { [ "$status" -eq 0 ] || [ "$status" -eq 4 ]; } && scxprof process -f files.tar.gz -o files >>said 2>&1
    if ! vm-check family files/perf.jsonl readers.out; then
        cat said
        return 1
    fi
}

# groups_of_the_kernel SOURCE [OPTIONS...]: with `--kernel`, that source finds the pairs of processes that share only through the kernel,
# beside others that read files. A minute is enough where few samples of 15 s are of what they share.
groups_of_the_kernel() {
    for program in pipes unixes readers; do
        in_cgroup "workload.slice/$program" family "$program" 3600 >"$program.out" &
    done
    for program in pipes unixes readers; do
        wait_for 60 grep -qs ready "$program.out" || return 1
    done
    for seconds in 15 60; do
        scxprof run --source "$@" --kernel -t "$seconds" --target-cpus 64 --cell pipes=/workload.slice/pipes \
            --cell unixes=/workload.slice/unixes -v -o cells.json >said 2>&1
        status=$?
        if { [ "$status" -eq 0 ] || [ "$status" -eq 4 ]; } &&
            vm-check groups cells.json /workload.slice/pipes pipes.out /workload.slice/unixes unixes.out; then
            killall family
            return 0
        fi
    done
    killall family
    cat said
    return 1
}

# verify_hardware STATUS SETTING=VALUE...: the script of `make verify-hardware`, on this machine; its report is in `report`.
verify_hardware() {
    expected=$1
    shift
    mkdir -p /sys/fs/cgroup/workload.slice/cells
    [ -e /dev/fd ] || ln -s /proc/self/fd /dev/fd
    # It gives way to perf, which takes seconds to start in the emulator.
    cat >load <<'END'
#!/bin/sh
echo $$ >/sys/fs/cgroup/workload.slice/cells/cgroup.procs
renice -n 19 -p $$
exec workload -s 3600
END
    chmod +x load
    cat >truth.json <<'END'
[{"cell": "workload.slice", "cgroup": "/workload.slice/cells", "threads": ["grpA-0", "grpA-1"]},
 {"cell": "workload.slice", "cgroup": "/workload.slice/cells", "threads": ["grpB-0", "grpB-1"]}]
END
    # The load of the self-test says nothing to the simulated PMU.
    env SELF_TEST=no BIN=/bin WORKLOAD=./load TRUTH=truth.json OUT=verified "$@" bash "$(readlink -f /bin/verify-hardware.sh)" >report 2>said
    status=$?
    if [ "$status" -ne "$expected" ] || ! cmp -s report verified/report.md; then
        cat said report
        echo "exit code $status and not $expected"
        return 1
    fi
}

# in_report PATTERN...: each is in the file `report`.
in_report() {
    for pattern; do
        grep -q -e "$pattern" report || {
            cat said report
            fail "the report does not have: $pattern"
        }
    done
}

# same_attrs OPTIONS OF scxprof run...: the module's log of what scxprof asks for against what perf asks for.
same_attrs() {
    empty_logs
    scxprof run -t 0.5 "$@" >out 2>said || [ $? -eq 1 ] || {
        cat said
        return 1
    }
    cp "$sim/attrs" ours
    empty_logs
    # perf 6.1 cannot do it with IBS.
    perf mem record -p --data-page-size -a -B -N -o perf.data -- sleep 0.2 >said 2>&1 ||
        perf mem record -a -B -N -o perf.data -- sleep 0.2 >said 2>&1 || {
        cat said
        return 1
    }
    cp "$sim/attrs" perfs
    vm-check attrs ours perfs
}

# examine: asks `scxprof doctor` about this machine, for `diagnosed`.
examine() {
    scxprof doctor --json >doctor.json 2>said || [ $? -eq 3 ] || {
        cat said
        fail "doctor on machine ${name:-none}"
    }
}

# diagnosed NAME STATE [TEXT]: doctor says this of it, and its sentence has the text.
diagnosed() {
    # The rows of a check, which begins with its section: one line each.
    tr -d '\n' <doctor.json | sed 's/"section"/\n&/g' | grep "\"name\": *\"$1\"" >row || fail "doctor has no row $1"
    grep -q "\"state\": *\"$2\"" row || fail "$1 on machine ${name:-none} is not \"$2\": $(cat row)"
    [ -z "${3:-}" ] || grep -q "$3" row || fail "$1 on machine ${name:-none} says nothing of \"$3\": $(cat row)"
}

# begin_demo [OPTIONS]: starts the example workload in cgroups of its own; returns when it works.
begin_demo() {
    demo-workload --seconds 3600 "$@" >demo.out 2>&1 &
    wait_for 120 grep -qs '^ready$' demo.out || {
        cat demo.out
        return 1
    }
}

# configuration_for TARGET: what scxprof prints for this scheduler on this guest, in TARGET.json.
configuration_for() {
    scxprof run --source timer --no-symbols --target "$1" -t 20 -v -o "$1.json" 2>said
    status=$?
    [ "$status" -eq 0 ] || [ "$status" -eq 4 ] || {
        cat said
        return 1
    }
    cat "$1.json"
}

# begin_scheduler OPS COMMAND...: starts a scheduler whose name in the kernel begins with OPS; returns when it schedules.
begin_scheduler() {
    mkdir -p /var/run /run
    ops=$1
    shift
    "$@" >scheduler.out 2>&1 &
    scheduler=$!
    wait_for 300 scheduler_runs_or_ended
    scheduler_runs || {
        tail -n 30 scheduler.out
        dmesg | grep -i sched_ext | tail -n 5
        return 1
    }
    echo "scheduler $(cat /sys/kernel/sched_ext/root/ops)"
}

scheduler_runs() { grep -qs "^$ops" /sys/kernel/sched_ext/root/ops && grep -q '^enabled$' /sys/kernel/sched_ext/state; }

scheduler_runs_or_ended() { scheduler_runs || ! kill -0 "$scheduler" 2>/dev/null; }

# begin_load: starts busy threads beside those of the example workload, of their names and in their cgroups; together at least two
# for each CPU, so that threads must share CPUs.
begin_load() {
    find /sys/fs/cgroup/workload.slice -name cgroup.procs -exec cat {} + >processes
    threads=$(while read -r process; do ls "/proc/$process/task"; done <processes | wc -l)
    copies=$(((2 * $(nproc) + threads - 1) / threads))
    while read -r process; do
        # One word a thread: none of their names has a space.
        # shellcheck disable=SC2046
        in_cgroup "$(sed -n 's/^0::.//p' "/proc/$process/cgroup")" busy "$copies" "$(cat "/proc/$process/comm")" \
            $(cat "/proc/$process/task"/*/comm) &
    done <processes
}

# end_load: ends it, with the example workload's own threads left.
end_load() {
    for process in $(pidof busy); do
        kill "$process"
    done
    wait_for 60 no_load
}

no_load() { ! pidof busy >/dev/null; }

# end_scheduler: ends it; true where it scheduled until then.
end_scheduler() {
    scheduler_runs || {
        echo "the scheduler is gone:"
        tail -n 30 scheduler.out
        dmesg | grep -i sched_ext | tail -n 5
        return 1
    }
    kill "$scheduler"
    wait "$scheduler"
    true
}

# said STATUS COMMAND...: runs the command; its output is in the file `said`.
said() {
    expected=$1
    shift
    "$@" >said 2>&1
    status=$?
    [ "$status" -eq "$expected" ] || {
        cat said
        fail "exit code $status and not $expected: $*"
    }
}

# says PATTERN...: each is in the file `said`.
says() {
    for pattern; do
        grep -q -e "$pattern" said || {
            cat said
            fail "it does not say: $pattern"
        }
    done
}
