//! Tests of what the sketch keeps and drops.

use super::*;
use crate::sample::{DataSource, RawSample};

fn sample(thread: u32, addr: u64) -> Sample {
    Sample { thread, memory: Some(MemoryId::Private { space: 1, addr }), ..Sample::default() }
}

fn uses(sharing: &Sharing) -> Vec<LineUse> {
    let mut uses: Vec<LineUse> = sharing.touches().flat_map(|touch| sharing.lines_of(touch)).collect();
    uses.sort_unstable_by_key(|it| (it.thread, it.page, it.line));
    uses
}

#[test]
fn the_kept_set_does_not_depend_on_the_order() {
    let samples: Vec<Sample> = (0..60_000u64).map(|n| sample((n % 7) as u32, mix(n) % (1 << 28))).collect();
    let kept = |samples: &mut dyn Iterator<Item = &Sample>| {
        let mut sharing = Sharing::new(1 << 19);
        samples.for_each(|sample| sharing.add(sample));
        let kept: Vec<_> =
            uses(&sharing).iter().map(|it| (it.page, it.line, it.thread, it.accesses, it.writes)).collect();
        (kept, sharing.stats().thinned)
    };
    let forward = kept(&mut samples.iter());
    assert!(forward.1 > 0, "nothing was evicted, so nothing is tested");
    assert_eq!(forward, kept(&mut samples.iter().rev()));
}

#[test]
fn sketches_of_parts_add_up_to_that_of_the_whole() {
    for budget in [4 << 20, 1 << 18] {
        let mut rng = crate::cluster::truth::Rng::new(7);
        let samples: Vec<Sample> = (0..60_000)
            .map(|_| {
                let (thread, addr) = (rng.below(7) as u32, rng.below(1 << 12) << 6 | rng.below(2) << 30);
                let access = if rng.below(3) == 0 { Access::Store } else { Access::Load };
                let memory = match rng.below(2) {
                    0 => MemoryId::Private { space: 1, addr },
                    _ => MemoryId::Shared { scope: MemoryScope::device(1, 0), ino: 10 + addr % 3, offset: addr },
                };
                Sample {
                    thread,
                    memory: Some(memory),
                    raw: RawSample { access, ..RawSample::default() },
                    ..Sample::default()
                }
            })
            .collect();
        let sketch = |samples: &[Sample]| {
            let mut sharing = Sharing::new(budget);
            for sample in samples {
                sharing.add(sample);
            }
            sharing
        };
        let whole = sketch(&samples);
        let mut sum = Sharing::new(budget);
        samples.chunks(25_000).for_each(|part| sum.merge(&sketch(part)));
        assert_eq!(sum.stats().thinned > 0, budget < 1 << 20);
        assert_eq!(sum.stats().samples, whole.stats().samples);
        assert_eq!(
            sum.threads().iter().map(|it| it.writes).sum::<u64>(),
            whole.threads().iter().map(|it| it.writes).sum::<u64>()
        );
        let all = |sharing: &Sharing| -> Vec<_> {
            uses(sharing).iter().map(|it| (it.page, it.line, it.thread, it.accesses, it.writes)).collect()
        };
        let (ours, theirs) = (all(&sum), all(&whole));
        if budget > 1 << 20 {
            assert_eq!(ours, theirs);
        } else {
            // What both keep is the same.
            let both = ours
                .iter()
                .filter(|it| theirs.binary_search_by_key(&(it.2, it.0, it.1), |it| (it.2, it.0, it.1)).is_ok());
            let both: Vec<_> = both.collect();
            assert!(both.len() > 1000 && both.iter().all(|it| theirs.contains(it)), "{}", both.len());
        }
        for page in sum.pages() {
            let objects = [&sum, &whole].map(|it| it.page(page.key).map(|page| it.address(page)));
            assert!(objects[1].is_none() || objects[0] == objects[1]);
        }
    }
}

#[test]
fn counts_are_exact_whether_a_line_is_seen_once_or_often() {
    let mut sharing = Sharing::new(1 << 19);
    let write = |it: Sample| Sample { raw: RawSample { access: Access::Store, ..it.raw }, ..it };
    let count = |addr: u64| (addr >> 6 & 3, addr >> 8 & 3);
    for addr in (0..16u64).map(|n| n << 6) {
        let (reads, writes) = count(addr);
        (0..reads).for_each(|_| sharing.add(&sample(1, addr)));
        (0..writes).for_each(|_| sharing.add(&write(sample(1, addr))));
    }
    let found: Vec<_> = uses(&sharing).iter().map(|it| (u64::from(it.line), it.accesses, it.writes)).collect();
    let expected: Vec<_> = (0..16u64)
        .map(|line| (line, count(line << 6)))
        .filter(|(_, (reads, writes))| reads + writes > 0)
        .map(|(line, (reads, writes))| (line, (reads + writes) as u32, writes as u32))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn accesses_of_one_event_to_one_line_are_one() {
    let mut sharing = Sharing::new(1 << 16);
    let of_event = |record: u64, addr: u64, access: Access| {
        let sample = sample(1, addr);
        Sample { raw: RawSample { share: 0.25, access, ..sample.raw }, record, ..sample }
    };
    for record in [7, 8] {
        for (addr, access) in
            [(0x1000, Access::Load), (0x1008, Access::Store), (0x1010, Access::Store), (0x2000, Access::Load)]
        {
            sharing.add(&of_event(record, addr, access));
        }
    }
    let found: Vec<_> = uses(&sharing).iter().map(|it| (it.accesses, it.writes)).collect();
    let mut found = found;
    found.sort_unstable();
    assert_eq!(found, [(2, 0), (2, 2)]);
    assert_eq!((sharing.threads()[1].accesses, sharing.threads()[1].writes), (4, 2));
    // Samples that are all of their event count each.
    sharing.add(&sample(1, 0x1000));
    sharing.add(&sample(1, 0x1000));
    assert_eq!(sharing.threads()[1].accesses, 6);
}

#[test]
fn what_may_be_wrong_weighs_less() {
    let mut sharing = Sharing::new(1 << 16);
    for record in 0..32_000 {
        let method = Some(if record % 2 == 0 { Method::Racy } else { Method::Emulated });
        let sample = sample((record % 2) as u32, 0x1000);
        sharing.add(&Sample { raw: RawSample { method, share: 0.5, ..sample.raw }, record, ..sample });
    }
    assert_eq!(sharing.threads()[1].accesses, 16_000);
    let unsure = sharing.threads()[0].accesses;
    assert!((15_400..15_600).contains(&unsure), "{unsure}");
}

#[test]
fn what_an_access_cost_is_kept_by_line() {
    let mut sharing = Sharing::new(1 << 16);
    let sample = sample(2, 0x40);
    let of = |data_src: u64, latency: u32| Sample {
        raw: RawSample { data_src: DataSource(data_src), latency, ..sample.raw },
        ..sample
    };
    // A hit in L1, memory with a latency, a line that another cache had modified, and unknown.
    for it in [of(0x2 | 0xa << 5, 4), of(0x2 | 0x82 << 5, 300), of(0x2 | 0x10 << 19, 0), of(0, 0)] {
        sharing.add(&it);
    }
    let [it] = uses(&sharing)[..] else { panic!() };
    assert_eq!((it.accesses, it.priced, it.misses, it.cycles, it.hitm), (4, 3, 2, 400, 1));
}

#[test]
fn memory_stays_where_it_was_and_what_is_hot_stays() {
    let mut sharing = Sharing::new(1 << 19);
    for n in 0..300_000u64 {
        sharing.add(&sample((n % 5) as u32, mix(n) % (1 << 40)));
        sharing.add(&sample((n % 5) as u32, 0x1000));
    }
    let stats = sharing.stats();
    assert!(stats.bytes < (1 << 19) + 4096);
    assert!(stats.pages_evicted > 0 && stats.not_kept > 0);
    let memory = MemoryId::Private { space: 1, addr: 0x1000 };
    let hot = sharing.page(place_key(memory)).unwrap();
    assert_eq!((hot.accesses, sharing.page_place(hot)), (300_000, Some(memory)));
    assert!(place_key(memory) >= sharing.threshold, "the page is kept anyway, so nothing is tested");
    // The cold page represents itself; others represent all dropped ones.
    let cold = sharing.pages().find(|page| page.accesses < hot.accesses).unwrap();
    assert!((sharing.stands_for(hot) - 1.0).abs() < f32::EPSILON);
    assert!((sharing.stands_for(cold) - 2f32.powi(stats.thinned as i32)).abs() < f32::EPSILON);
    let of_hot: u32 = uses(&sharing).iter().filter(|it| it.page == place_key(memory)).map(|it| it.accesses).sum();
    assert_eq!(of_hot, 300_000);
}

#[test]
fn samples_that_are_announced_count_alike() {
    let samples: Vec<Sample> = (0..40_000u64)
        .map(|n| sample((n % 3) as u32, if n % 7 == 0 { 0x1000 + ((n % 64) << 6) } else { mix(n) % (1 << 40) }))
        .collect();
    let (mut one, mut other) = (Sharing::new(1 << 17), Sharing::new(1 << 17));
    for sample in &samples {
        one.add(sample);
    }
    for samples in samples.chunks(64) {
        let samples: Vec<_> = samples.iter().map(|sample| (sample.thread, sample)).collect();
        for &(thread, sample) in &samples {
            other.expect(thread, sample);
        }
        other.add_expected(&samples);
    }
    assert!(one.stats().not_kept > 0 && !one.spared.is_empty(), "{:?}", one.stats());
    assert_eq!(one.stats(), other.stats());
    assert_eq!(format!("{:?}", uses(&one)), format!("{:?}", uses(&other)));
}

#[test]
fn numbers_of_one_thread_are_one() {
    let mut sharing = Sharing::new(1 << 16);
    sharing.same_thread(3, 1);
    sharing.same_thread(5, 3);
    assert_eq!((0..7).map(|thread| sharing.owner(thread)).collect::<Vec<_>>(), [0, 1, 2, 1, 4, 1, 6]);
}

#[test]
fn threads_beyond_the_budget_take_no_memory() {
    let mut sharing = Sharing::new(0);
    let limit = sharing.thread_limit as u32;
    assert!(limit > 100, "too few for anything");
    sharing.add(&sample(limit, 0x1000));
    assert_eq!((sharing.stats().without_thread, sharing.threads().len()), (1, 0));
    sharing.add(&sample(limit - 1, 0x1000));
    assert_eq!((sharing.stats().without_thread, sharing.threads().len()), (1, limit as usize));
    assert!(sharing.threads.capacity() * size_of::<Activity>() <= 1 << 13);
}

#[test]
fn hot_pages_leave_room_for_others() {
    // All lines of 100 pages by two threads each, again and again: more than the smallest sketch holds.
    let mut sharing = Sharing::new(0);
    for turn in 0..3 {
        for page in 0..100u64 {
            for line in 0..64u64 {
                for thread in 0..2 {
                    sharing.add(&sample(thread, page << 12 | line << 6));
                }
            }
        }
        assert_eq!(sharing.stats().thinned > 0, turn > 0, "a line that is seen once takes no room of its own");
        assert!(sharing.touches.len <= sharing.touches.limit && sharing.repeats.len <= sharing.repeats.limit);
    }
    assert!(sharing.touches().count() > 0, "everything was let go");
}

#[test]
fn files_beyond_those_with_a_name_count_too() {
    let mut sharing = Sharing::new(8 << 20);
    for ino in 0..OBJECTS as u64 + 100 {
        let memory = Some(MemoryId::Shared { scope: MemoryScope::device(1, 0), ino, offset: 0x1000 });
        sharing.add(&Sample { memory, ..Sample::default() });
    }
    assert_eq!((sharing.names.len(), sharing.objects.len()), (OBJECTS, OBJECTS));
    let file = |ino: u64| MemoryId::Shared { scope: MemoryScope::device(1, 0), ino, offset: 0x1000 };
    let kept = (1 << 32..1 << 33).map(file).find(|&memory| place_key(memory) < sharing.threshold).unwrap();
    sharing.add(&Sample { memory: Some(kept), ..Sample::default() });
    let page = sharing.page(place_key(kept)).unwrap();
    assert_eq!((page.accesses, sharing.page_place(page)), (1, None));
}

#[test]
fn what_has_no_place_or_no_thread_is_counted_as_such() {
    let mut sharing = Sharing::new(1 << 16);
    sharing.add(&Sample { raw: RawSample { share: f32::NAN, ..sample(0, 0x1000).raw }, ..sample(0, 0x1000) });
    sharing.add(&Sample { thread: u32::MAX, ..sample(0, 0x1000) });
    sharing.add(&Sample { memory: None, ..sample(0, 0) });
    sharing.count(0, &Sample { memory: None, ..sample(0, 0) });
    sharing.count(0, &sample(0, 0x5000));
    let stats = sharing.stats();
    assert_eq!((stats.samples, stats.without_thread, stats.without_place, stats.pages), (2, 1, 2, 1));
}

#[test]
fn counts_stay_at_the_most() {
    let mut sharing = Sharing::new(0);
    sharing.add(&sample(0, 0x1000));
    sharing.add(&sample(0, 0x1000));
    sharing.pages.slots.iter_mut().filter(|it| !it.is_empty()).for_each(|it| it.accesses = u32::MAX);
    sharing.repeats.slots.iter_mut().filter(|it| !it.is_empty()).for_each(|it| it.accesses = u32::MAX);
    sharing.add(&Sample { raw: RawSample { latency: u32::MAX, ..sample(0, 0x1000).raw }, ..sample(0, 0x1000) });
    assert!(sharing.pages().all(|page| page.accesses == u32::MAX && page.latency == 1 << 22));
    assert!(uses(&sharing).iter().all(|it| it.accesses == u32::MAX));
    assert_eq!((sharing.pages.len, sharing.repeats.len, sharing.touches.len), (1, 1, 1));
}
