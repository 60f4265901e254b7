# Source spe on a simulated statistical profiling extension (module/simspe.c): every sample is what the module wrote.
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh
[ -e /lib/simspe.ko ] || {
    echo "SKIP: vm test spe: $(cat /lib/no-simspe)"
    exit 0
}

# set_spe PARAMETER VALUE: changes the module's behaviour.
set_spe() {
    echo "$2" >"/sys/module/simspe/parameters/$1"
    echo "simspe $1=$2"
}

# samples NAME [WORDS OF vm-check samples...]
samples() {
    name=$1
    shift
    in_cgroup workload.slice/spe vm-check samples source=spe "$@" >said 2>&1 || {
        cat said
        dmesg | tail -n 5
        fail "$name"
    }
    cat said
}

said 3 scxprof run --source spe -t 1
says 'source spe: no PMU arm_spe_0 in /sys/bus/event_source/devices' 'modprobe arm_spe_pmu'

insmod /lib/simspe.ko || fail "insmod simspe"
said 0 scxprof doctor
says 'spe  *works  *arm_spe_0/ts_enable=1' 'pmu  *works  *arm_spe_0: loads and stores on CPUs 0-1, at most every 256' 'ldlat  *works  *arm_spe_0: up to 4095'
samples "with context packets"
samples "with a period" period=199936
samples "with a threshold" ldlat=15 filter=15
set_spe contexts 0
samples "with switches"
set_spe lose 40
samples "with cut records"
says 'AUX data lost [1-9]' 'cut records [1-9]'
set_spe lose 0
# Losses are said.
set_spe collide 1
said 0 scxprof run --source spe -t 2 -v -o cells.json -- workload -s 1
says 'pieces\? of AUX data with samples that collided'
set_spe collide 0
set_spe kernel 1
samples "with kernel code, left out"

# Threads that share are found, live and in a recording, which perf reads too.
set_spe kernel 0
for contexts in 0 1; do
    set_spe contexts "$contexts"
    begin_workload workload.slice/cells || fail "the workload does not start"
    said 0 scxprof run -t 6 --target-cpus 64 -v -o cells.json
    says '^Source: spe'
    vm-check cells cells.json workload.slice/cells || {
        cat said cells.json
        fail "the configuration of auto"
    }
    said 0 scxprof record --source spe -t 4 -o "recorded-$contexts.tar.gz"
    cp said recorded.said
    said 0 scxprof extract -f "recorded-$contexts.tar.gz" --target-cpus 64 -v -o cells.json
    vm-check cells cells.json workload.slice/cells || {
        cat said recorded.said cells.json
        fail "the configuration of a recording"
    }
    said 0 scxprof process -f "recorded-$contexts.tar.gz" -o "lines-$contexts"
    # Samples of SPE have no cgroup; the recording has those of threads.
    all=$(grep -c '"comm":"grp' "lines-$contexts/perf.jsonl")
    known=$(grep '"comm":"grp' "lines-$contexts/perf.jsonl" | grep -c '"cgroup":"[^"]*workload.slice/cells"')
    if [ "$all" -le 100 ] || [ "$known" -ne "$all" ]; then
        fail "$known of $all samples have their cgroup"
    fi
    # Those of threads without samples too, for the threads that they create.
    tar -xzOf "recorded-$contexts.tar.gz" '*/cgroups.jsonl' >said
    says '^{"pid":1,"tid":1,"timestamp":[1-9]'
    # The processes of the workload by pid.
    pid=$(pidof workload | tr ' ' '\n' | sort -n | head -n 1)
    said 0 scxprof run --source spe -p "$pid" -t 3 -v -o own.json
    says '^Source: spe'
    end_workload
done
# perf's recording of the same hardware: every sample as perf shows it.
if [ -x /bin/perf ]; then
    for contexts in 0 1; do
        set_spe contexts "$contexts"
        perf record -q -a -e arm_spe_0/ts_enable=1,pa_enable=1,load_filter=1,store_filter=1/ -c 100096 -o spe.data -- workload -s 3 >said 2>&1 || {
            cat said
            fail "perf record"
        }
        perf script --itrace=M --ns -F tid,cpu,time,ip,addr,phys_addr -i spe.data 2>said |
            sed -n 's/^ *\([0-9]*\) *\[0*\([0-9]\+\)\] *\([0-9]*\)\.\([0-9]*\): *\([0-9a-f]*\) *\([0-9a-f]*\) *\([0-9a-f]*\)$/\1 \2 \3\4 \5 \6 \7/p' | sort >theirs
        said 0 scxprof process -f spe.data -o "perf-$contexts"
        sed -n 's/.*"tid":\([0-9]*\),"cpu":\([0-9]*\),"time":"\([0-9]*\)\.\([0-9]*\)","ip":"\([0-9a-f]*\)","addr":"\([0-9a-f]*\)","phys_addr":"\([0-9a-f]*\)".*/\1 \2 \3\4 \6 \5 \7/p' \
            "perf-$contexts/perf.jsonl" | sort >ours
        if [ "$(wc -l <ours)" -le 1000 ] || ! cmp ours theirs; then
            diff ours theirs | head -n 20
            fail "samples of perf record, with contexts=$contexts"
        fi
        echo "perf: $(wc -l <ours) samples as perf script shows them"
    done
else
    echo "SKIP: vm test spe: perf's samples: $(cat /lib/no-perf)"
fi
# A command from its beginning to its end.
said 0 scxprof run --source spe -v -o own.json -- workload -s 3
says '^Source: spe'
wait_for 10 rmmod simspe || fail "events are still open"
