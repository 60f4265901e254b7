use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tests::{as_is, consistent, event, options, task};
use super::*;
use scxprof_base::sample::sched::{SchedTask, TaskState, WakenBy};

/// Categories of the property tests.
const CATEGORIES: [&str; 4] = ["x=a*@hint=1", "a1", "y=?2", "x=b*"];

/// What [`Windows`] computes, by marking each ns of each CPU with its column.
fn slow(options: &WindowOptions, events: &[SchedEvent]) -> Vec<(u64, u64, Vec<u64>)> {
    #[derive(Clone, Default)]
    struct SlowCpu {
        marks: BTreeMap<u64, &'static str>,
        last: u64,
        thread: Option<(u32, String, &'static str)>,
        irqs: i32,
        softirqs: i32,
    }
    fn mark(cpu: &mut SlowCpu, time: u64) {
        let state = match &cpu.thread {
            _ if cpu.irqs > 0 => Some("irq"),
            _ if cpu.softirqs > 0 => Some("softirq"),
            thread => thread.as_ref().map(|(_, _, column)| *column),
        };
        for ns in cpu.last..time {
            cpu.marks.extend(state.map(|state| (ns, state)));
        }
        cpu.last = time;
    }
    fn category(tid: u32, name: &str, hint: Option<u64>) -> &'static str {
        match name {
            _ if tid == 0 => "idle",
            _ if name.starts_with('a') && hint == Some(1) => "x",
            "a1" => "a1",
            _ if name.len() == 2 && name.ends_with('2') => "y",
            _ if name.starts_with('b') => "x",
            _ => "uncategorised",
        }
    }
    let mut cpus = vec![SlowCpu::default(); options.cpus.len()];
    let mut hints: BTreeMap<u32, u64> = BTreeMap::new();
    for event in events {
        if let SchedWhat::Hint { tid, hint } = event.what {
            if tid != 0 && hints.get(&tid).copied() != hint {
                hints.remove(&tid);
                hints.extend(hint.map(|hint| (tid, hint)));
                for cpu in &mut cpus {
                    if let Some((_, name, _)) = cpu.thread.clone().filter(|thread| thread.0 == tid) {
                        mark(cpu, event.time);
                        cpu.thread = Some((tid, name.clone(), category(tid, &name, hint)));
                    }
                }
            }
            continue;
        }
        let cpu = &mut cpus[event.cpu as usize];
        if event.what == SchedWhat::Lost {
            *cpu = SlowCpu { marks: std::mem::take(&mut cpu.marks), last: event.time, ..SlowCpu::default() };
            continue;
        }
        if let SchedWhat::Switch { prev, .. } = event.what {
            if cpu.thread.as_ref().is_some_and(|thread| thread.0 != prev.tid) {
                *cpu = SlowCpu { marks: std::mem::take(&mut cpu.marks), last: event.time, ..SlowCpu::default() };
            }
        }
        mark(cpu, event.time);
        match event.what {
            SchedWhat::Switch { prev, state, next } => {
                if state == TaskState::Dead {
                    hints.remove(&prev.tid);
                }
                let name = next.comm.to_string();
                let column = category(next.tid, &name, hints.get(&next.tid).copied());
                cpu.thread = Some((next.tid, name, column));
                (cpu.irqs, cpu.softirqs) = (0, 0);
            }
            SchedWhat::IrqEntry { .. } => cpu.irqs += 1,
            SchedWhat::IrqExit { .. } => cpu.irqs = (cpu.irqs - 1).max(0),
            SchedWhat::SoftirqEntry { .. } => cpu.softirqs += 1,
            SchedWhat::SoftirqExit { .. } => cpu.softirqs = (cpu.softirqs - 1).max(0),
            SchedWhat::Fork { child: tid, .. } | SchedWhat::Exit { task: SchedTask { tid, .. } } => {
                hints.remove(&tid);
            }
            _ => {}
        }
    }
    let (Some(first), Some(last)) = (events.first(), events.last()) else { return Vec::new() };
    let columns = ["x", "a1", "y", "uncategorised", "irq", "softirq", "idle"];
    let row = |begin: u64| {
        let end = (begin + options.width).min(last.time);
        let count = |column: &str| {
            let of = |cpu: &SlowCpu| cpu.marks.range(begin..end).filter(|(_, mark)| **mark == column).count() as u64;
            cpus.iter().map(of).sum::<u64>()
        };
        let mut ns: Vec<u64> = columns.iter().map(|column| count(column)).collect();
        ns.push((end - begin) * cpus.len() as u64 - ns.iter().sum::<u64>());
        (begin, end - begin, ns)
    };
    (first.time..last.time).step_by(options.width as usize).map(row).collect()
}

fn any_what() -> impl Strategy<Value = SchedWhat> {
    let any_task = || (0u32..6, "[abc][12]?").prop_map(|(tid, comm)| task(tid, &comm));
    prop_oneof![
        6 => (any_task(), any_task(), prop::bool::weighted(0.2)).prop_map(|(prev, next, dead)| SchedWhat::Switch {
            prev,
            state: if dead { TaskState::Dead } else { TaskState::Runnable },
            next
        }),
        3 => Just(SchedWhat::IrqEntry { irq: 1 }),
        3 => Just(SchedWhat::IrqExit { irq: 1 }),
        3 => Just(SchedWhat::SoftirqEntry { vec: 1 }),
        3 => Just(SchedWhat::SoftirqExit { vec: 1 }),
        3 => any_task().prop_map(|task| SchedWhat::Waking { task, target_cpu: 0, by: WakenBy::Thread }),
        3 => (0u32..6, prop::option::of(0u64..3)).prop_map(|(tid, hint)| SchedWhat::Hint { tid, hint }),
        1 => any_task().prop_map(|task| SchedWhat::Exit { task }),
        1 => any_task().prop_map(|task| SchedWhat::Fork { parent: 1, child: task.tid, comm: task.comm }),
        1 => Just(SchedWhat::Lost),
    ]
}

proptest! {
    #[test]
    fn windows_are_those_of_the_slow_way(
        steps in prop::collection::vec((0u64..40, 0u32..3, any_what()), 1..200), width in 5u64..80, begin in 0u64..100,
    ) {
        let mut time = begin;
        let mut events: Vec<SchedEvent> = steps.into_iter().map(|(wait, cpu, what)| {
            time += wait;
            event(time, cpu, what)
        }).collect();
        consistent(&mut events, 7);
        let options = options(width, &CATEGORIES, &[0, 1, 2]);
        let expected = slow(&options, &events);
        let found = as_is(options, &events);
        let found: Vec<_> = found.into_iter().map(|window| (window.begin, window.width, window.ns)).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn the_columns_of_any_stream_add_up(
        steps in prop::collection::vec((0u8..40, any::<u64>(), 0u32..6, any_what()), 1..200), width in 1u64..50,
        begin in prop_oneof![0u64..1000, any::<u64>()],
    ) {
        let mut time = begin;
        let events: Vec<SchedEvent> = steps.into_iter().map(|(kind, any, cpu, what)| {
            time = match kind {
                0 => any,
                1 => time.saturating_add(any % (width * 2 * MAX_OPEN as u64)),
                2 => time.saturating_sub(any % 1000),
                _ => time.saturating_add(any % 40),
            };
            event(time, if cpu == 5 { any as u32 } else { cpu }, what)
        }).collect();
        let (mut windows, mut end) = (Windows::new(options(width, &CATEGORIES, &[1])), 0);
        let mut wrong = Vec::new();
        let mut check = |window: &Window| {
            let is_whole = window.ns.iter().sum::<u64>() == window.width * u64::from(window.cpus);
            let is_next = window.begin >= end && (end == 0 || (window.begin - end).is_multiple_of(width));
            end = window.begin + window.width;
            if !is_whole || !is_next || window.width == 0 || window.width > width {
                wrong.push(window.clone());
            }
        };
        for event in &events {
            windows.take(event, &mut check);
            prop_assert!(windows.open.len() <= MAX_OPEN);
        }
        windows.finish(&mut check);
        prop_assert!(wrong.is_empty(), "{wrong:?}");
    }
}
