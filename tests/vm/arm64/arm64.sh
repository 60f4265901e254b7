# What works on arm64: doctor, addresses recovered at the tick, wakeups, faults, scheduling events, stacks, hints, recordings.
# shellcheck shell=dash source=tests/vm/lib.sh
. /lib/vm.sh

said 0 scxprof doctor
says 'aarch64, Neoverse-N1, 2 CPUs' 'faults  *works' 'timer  *works  *timer:hrtimer_expire_entry' 'kallsyms  *works' 'spe  *fails  *source spe: no PMU arm_spe_0' 'pmu  *fails  *no PMU arm_spe_0' \
    'sample-memory  *works' 'hints-storage  *works' 'hints-syscall  *works'
for source in pebs ibs; do
    said 3 scxprof run --source "$source" -t 1
    says "source $source is for x86-64 only"
done

said 3 scxprof run --source timer --kernel -t 1
says 'kernel code on x86-64 only'

# What instructions do, as the processor says, and the recovery at every instruction of real programs.
scxprof_recover a64:: --skip proptest >units 2>&1 || {
    cat units
    fail "the units of the recovery"
}
grep '^test result' units
{ SCXPROF_BUILT=/programs/gcc SCXPROF_STEPS=2500 operand _o0 _o2 made --skip live --skip special --show-output &&
    SCXPROF_BUILT=/programs/clang SCXPROF_STEPS=2300 operand _o0 _o2 --skip live --skip special --show-output; } >stepped 2>&1 || {
    cat stepped
    fail "programs that are single-stepped"
}
grep SKIP stepped && fail "programs were left out"
awk '/ yield / { for (i = 1; i < NF; i++) if ($i == "and") sum += $(i + 3) }
    / programs: / { sum += $3 }
    END { print "addresses checked by single-stepping: " sum + 0 }' stepped

# The tests of the recovery with the memory around the registers, whose programs know what they access, and those of hints.
SCXPROF_BUILT=/programs/gcc live timer::truth::hash timer::truth::list timer::truth::queue timer::truth::the_tick --nocapture --test-threads=1 >tested 2>&1 || {
    cat tested
    fail "addresses of programs that know them"
}
grep '^test result\|user samples\|SKIP' tested
for probe in local_storage_update pid_task_storage_update_elem syscall; do
    SCXPROF_HINT_WRITER=/bin/writer SCXPROF_HINT_PROBE=$probe live hints:: --nocapture --test-threads=1 --skip a_recording --skip without_hints >tested 2>&1 || {
        cat tested
        fail "hints by $probe"
    }
    grep '^test result' tested
done

# Threads that share memory are found at the tick.
for program in state chase file falseshare hash seqlock pool; do
    family "$program" 3600 x >truth &
    wait_for 60 grep -q '^ready' truth || fail "$program does not start"
    said 0 scxprof run --source timer -t 15 --target-cpus 64 -v -o cells.json
    awk '/^thread/ { split($2, group, "="); split($5, name, "="); if (group[2] != "-") of[group[2]] = of[group[2]] " " name[2] }
        END { for (group in of) print of[group] }' truth >groups
    while read -r group; do
        pattern=$(echo "$group" | tr ' ' '\n' | sort -u | tr '\n' '+' | sed 's/+$//')
        grep -q "\"$pattern\"" cells.json || {
            cat said truth cells.json
            fail "$program: no subcell of $group"
        }
    done <groups
    [ -s groups ] || grep -q '^no groups' said || {
        cat said
        fail "$program: groups where nothing is shared"
    }
    echo "$program: $(grep '^Recovered' said)"
    killall family
    sleep 1
done
family state 3600 x >truth &
said 0 scxprof record --source timer -t 4 -o profile.tar.gz
said 0 scxprof extract -f profile.tar.gz --target-cpus 64 -o recorded.json
killall family

family pipes 3600 x >truth &
wait_for 60 grep -q 'name=xput-ac' truth || fail "the pairs do not start"
said 0 scxprof run --source wakeups -t 5 --target-cpus 8 -o cells.json
for pair in aa ab ac; do
    grep -q "xget-$pair+xput-$pair" cells.json || {
        cat said cells.json
        fail "pair $pair is not found by its wakeups"
    }
done
said 0 scxprof sched -t 3
says '^xput-aa\|^main' 'All threads: '
# Frame pointers, through the program's own function into the system call that it made.
said 0 scxprof stacks -t 3 --folded stacks.txt
cp stacks.txt said
says ';stream_work;.*;el0_svc'
# Call frame information, through a function that keeps no frame record.
said 0 scxprof stacks --call-graph dwarf -t 3 --folded stacks.txt
cp stacks.txt said
says 'thread_start;start_thread;.*;stream_work'
# A signal handler is unwound to what it interrupted; on a stack of its own, to the interrupted function.
for how in depth signal other; do
    said 0 scxprof stacks -e cpu-clock:u -F 99 --unwind dwarf,16384 --no-lines --folded stacks.txt -- unwind "$how" 6
    case $how in
        depth) above= ;;
        signal) above=';__kernel_rt_sigreturn;handler;aligned;down;down;down;bottom' ;;
        other) above='' below='^unwind;bottom;__kernel_rt_sigreturn;handler;aligned;down;down;down;bottom ' ;;
    esac
    cp stacks.txt said
    says ";main;aligned;down;down;down;down;down;down;bottom$above " "${below:-^unwind}"
done
said 0 scxprof record --source faults --sched -t 3 -o both.tar.gz
said 0 scxprof sched -f both.tar.gz
says 'All threads: '
said 0 scxprof trace info both.tar.gz
says '^architecture  *aarch64' '^sched_switch '
killall family

# Processes that share mapped files.
(while family file 1 y >/dev/null; do :; done) &
said 0 scxprof record --source faults -t 8 -o faults.tar.gz
said 0 scxprof extract -f faults.tar.gz --target-cpus 64 -o recorded.json
said 0 scxprof process -f faults.tar.gz -o lines
# Threads that are renamed after their last sample may be decided otherwise: so nothing is compared.
said 0 scxprof extract -f lines --target-cpus 64 -o lines.json
[ "$(wc -l <lines/perf.jsonl)" -gt 100 ] || fail "there are only $(wc -l <lines/perf.jsonl) samples of first touches"
