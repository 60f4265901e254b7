//! Compact scheduling events: a structure of arrays, which leaves out what the events before say.

use super::raw::{thread, Raw, MAX_CPUS};
use super::wire::{Fields, Packed, Value};
use scxprof_base::sample::sched::{SchedEvent, SchedTask, StateBits, WakenBy};
use scxprof_base::sample::Comm;

/// Names of a bundle that are kept; a bundle has some hundred.
const MAX_NAMES: usize = 1 << 16;

/// How many events there are.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decoded {
    pub(super) switches: u64,
    pub(super) wakings: u64,
    /// Those whose CPU or thread is beyond what the kernel gives.
    pub(super) out_of_range: u64,
}

/// `CompactSched`: each array is packed, and of its kind all have one length.
#[derive(Debug, Default)]
pub(super) struct Arrays<'a> {
    /// 1 times, 2 states, 3 next threads, 4 their priorities, 6 their names.
    switches: [Packed<'a>; 5],
    /// 7 times, 8 woken threads, 9 target CPUs, 10 priorities, 11 names, 12 flags.
    wakings: [Packed<'a>; 6],
    names: Vec<Comm>,
    pub(super) is_broken: bool,
}

impl<'a> Arrays<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Self {
        let mut arrays = Self::default();
        let mut fields = Fields::new(bytes);
        let mut has_too_many = false;
        for (number, value) in fields.by_ref() {
            let Value::Bytes(packed) = value else { continue };
            let place = match number {
                1..=4 => arrays.switches.get_mut(number as usize - 1),
                5 => {
                    if arrays.names.len() < MAX_NAMES {
                        arrays.names.push(Comm::new(packed));
                    } else {
                        has_too_many = true;
                    }
                    None
                }
                6 => arrays.switches.get_mut(4),
                7..=12 => arrays.wakings.get_mut(number as usize - 7),
                _ => None,
            };
            if let Some(place) = place {
                *place = Packed::new(packed);
            }
        }
        arrays.is_broken = has_too_many || fields.is_broken();
        arrays
    }

    pub(super) fn has_switches(&self) -> bool {
        !self.switches[0].is_empty()
    }

    pub(super) fn has_wakings(&self) -> bool {
        !self.wakings[0].is_empty()
    }

    /// The time of the first event. Differences may be negative.
    pub(super) fn earliest(&self) -> Option<u64> {
        let of = |times: &Packed<'_>| {
            let sums = times.clone().scan(0u64, |time, step| {
                *time = time.wrapping_add(step);
                Some(*time)
            });
            sums.min()
        };
        [of(&self.switches[0]), of(&self.wakings[0])].into_iter().flatten().min()
    }

    /// True if the arrays of a kind have different lengths. One that is left out counts as zeros.
    pub(super) fn uneven(&self) -> bool {
        Self::differ(&self.switches, 2) || Self::differ(&self.wakings, 1)
    }

    /// `needed` is the array of threads, without which there is nothing to say.
    fn differ(arrays: &[Packed<'_>], needed: usize) -> bool {
        let Some(count) = arrays.first().map(Packed::len) else { return false };
        let wrong = |(at, array): (usize, &Packed<'_>)| {
            let len = array.len();
            len != count && (len > 0 || at == needed)
        };
        arrays.iter().enumerate().any(wrong)
    }

    /// Gives the events until `out` takes no more; returns how many there are.
    pub(super) fn decode(mut self, cpu: u32, states: StateBits, mut out: impl FnMut(u64, Raw) -> bool) -> Decoded {
        let (mut switches, mut wakings, mut out_of_range) = (0, 0, 0);
        let names = std::mem::take(&mut self.names);
        let name = |at: u64| usize::try_from(at).ok().and_then(|at| names.get(at)).copied().unwrap_or_default();
        if !Self::differ(&self.switches, 2) {
            let [times, mut of_prev, mut tids, mut prios, mut comms] = self.switches;
            let mut time = 0u64;
            for step in times {
                time = time.wrapping_add(step);
                let state = states.state(of_prev.next().unwrap_or(0));
                let tid = thread(tids.next().unwrap_or(0));
                let prio = prios.next().unwrap_or(0) as i32;
                // What runs then is not known.
                out_of_range += u64::from(tid.is_none());
                let tid = tid.unwrap_or(SchedEvent::UNKNOWN);
                let next = SchedTask { tid, prio, comm: name(comms.next().unwrap_or(u64::MAX)) };
                switches += 1;
                if !out(time, Raw::SwitchTo { cpu, state, next }) {
                    return Decoded { switches, wakings, out_of_range };
                }
            }
        }
        if !Self::differ(&self.wakings, 1) {
            let [times, mut tids, mut targets, mut prios, mut comms, mut flags] = self.wakings;
            let mut time = 0u64;
            for step in times {
                time = time.wrapping_add(step);
                let tid = thread(tids.next().unwrap_or(0));
                let target_cpu = u32::try_from(targets.next().unwrap_or(0)).ok().filter(|cpu| *cpu < MAX_CPUS);
                let prio = prios.next().unwrap_or(0) as i32;
                let comm = name(comms.next().unwrap_or(u64::MAX));
                let by = WakenBy::from_flags(flags.next().unwrap_or(0));
                wakings += 1;
                let (Some(tid), Some(target_cpu)) = (tid, target_cpu) else {
                    out_of_range += 1;
                    continue;
                };
                let task = SchedTask { tid, prio, comm };
                if !out(time, Raw::WokenOn { cpu, task, target_cpu, by }) {
                    break;
                }
            }
        }
        Decoded { switches, wakings, out_of_range }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scxprof_base::sample::sched::TaskState;

    fn array(number: u8, values: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, values.len() as u8], values].concat()
    }

    #[test]
    fn arrays_become_events_unless_their_lengths_differ() {
        let switches = |tids: &[u8]| {
            [array(1, &[100, 5]), array(2, &[1, 0]), array(3, tids), array(4, &[120, 99]), array(6, &[1, 0])].concat()
        };
        let counts = |switches| Decoded { switches, wakings: 2, out_of_range: 0 };
        let names = [array(5, b"a"), array(5, b"b")].concat();
        let wakings = [array(7, &[90, 3]), array(8, &[7, 8]), array(9, &[2, 3]), array(12, &[0, 8])].concat();
        let bytes = [switches(&[7, 0]), names.clone(), wakings.clone()].concat();
        let arrays = Arrays::parse(&bytes);
        assert!(!arrays.uneven() && !arrays.is_broken);
        assert_eq!(arrays.earliest(), Some(90));
        let mut events = Vec::new();
        let mut take = |time, raw| {
            events.push((time, raw));
            true
        };
        assert_eq!(arrays.decode(4, StateBits::default(), &mut take), counts(2));
        let task = |tid, prio, comm: &str| SchedTask { tid, prio, comm: Comm::from(comm) };
        let woken = |tid, target_cpu, by| Raw::WokenOn { cpu: 4, task: task(tid, 0, ""), target_cpu, by };
        let expected = [
            (100, Raw::SwitchTo { cpu: 4, state: TaskState::Sleeping, next: task(7, 120, "b") }),
            (105, Raw::SwitchTo { cpu: 4, state: TaskState::Runnable, next: task(0, 99, "a") }),
            (90, woken(7, 2, WakenBy::Thread)),
            (93, woken(8, 3, WakenBy::Interrupt)),
        ];
        assert_eq!(events, expected);
        let bytes = [switches(&[7]), names, wakings].concat();
        let arrays = Arrays::parse(&bytes);
        assert!(arrays.uneven());
        assert_eq!(arrays.decode(4, StateBits::default(), |_, _| true), counts(0));
    }
}
