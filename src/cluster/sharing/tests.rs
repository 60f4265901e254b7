//! What the sketch keeps and what it lets go.

use super::*;

fn sample(thread: u32, addr: u64) -> Sample {
    Sample { thread, place: Some(Place::Private { space: 1, addr }), ..Sample::default() }
}

#[test]
fn the_kept_set_does_not_depend_on_the_order() {
    let samples: Vec<Sample> = (0..60_000u64).map(|n| sample((n % 7) as u32, mix(n) % (1 << 28))).collect();
    let kept = |samples: &mut dyn Iterator<Item = &Sample>| {
        let mut sharing = Sharing::new(1 << 19);
        samples.for_each(|sample| sharing.add(sample));
        let mut touches: Vec<_> =
            sharing.touches().map(|touch| (touch.page, touch.thread, touch.weight, touch.lines)).collect();
        touches.sort_unstable();
        let mut lines: Vec<_> = sharing.lines().map(|line| (line.key, line.weight, line.shared)).collect();
        lines.sort_unstable();
        assert!(sharing.line_threshold < u64::MAX && !lines.is_empty(), "no line was evicted");
        (touches, sharing.stats().thinned, lines)
    };
    let forward = kept(&mut samples.iter());
    assert!(forward.1 > 0, "nothing was evicted, so nothing is tested");
    assert_eq!(forward, kept(&mut samples.iter().rev()));
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
    let place = Place::Private { space: 1, addr: 0x1000 };
    let hot = sharing.page(place_key(place)).unwrap();
    assert_eq!((hot.weight, sharing.page_place(hot)), (300_000 * EVENT, Some(place)));
    // It is there for itself, another for all those that went.
    let cold = sharing.pages.iter().find(|page| page.weight < hot.weight).unwrap();
    assert!((sharing.stands_for(hot) - 1.0).abs() < f32::EPSILON);
    assert!((sharing.stands_for(cold) - 2f32.powi(stats.thinned as i32)).abs() < f32::EPSILON);
    assert!(place_key(place) >= sharing.line_threshold, "the line is kept anyway, so nothing is tested");
    let hot = sharing.lines().find(|line| sharing.line_place(line) == Some(place)).unwrap();
    assert_eq!(hot.weight, 300_000 * EVENT);
}

#[test]
fn numbers_of_one_thread_share_nothing() {
    let mut sharing = Sharing::new(1 << 16);
    sharing.same_thread(3, 1);
    sharing.same_thread(5, 3);
    for thread in [5, 3, 1, 5] {
        sharing.add(&sample(thread, 0x1000));
    }
    let alone: Vec<u32> = (0..6).collect();
    assert!(sharing.lines().all(|line| !line.shared));
    assert!((sharing.locality(&alone) - 1.0).abs() < f64::EPSILON);
    for thread in [5, 2, 1] {
        sharing.add(&sample(thread, 0x2000));
    }
    let shared: Vec<Option<Place>> =
        sharing.lines().filter(|line| line.shared).map(|line| sharing.line_place(line)).collect();
    assert_eq!(shared, [Some(Place::Private { space: 1, addr: 0x2000 })]);
    assert!(sharing.locality(&alone).abs() < f64::EPSILON);
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
    for (threads, thinned) in [(1, 3), (5, 5)] {
        let mut sharing = Sharing::new(0);
        let key = |page: u64| place_key(Place::Private { space: 1, addr: page << 12 });
        // The hottest has more threads than hot pages may take.
        let wide = (1 << 20..1 << 21).find(|&page| key(page) > u64::MAX / 2).unwrap();
        for n in 0..4000 {
            sharing.add(&sample(n % 200, wide << 12));
        }
        for n in 0..20_000u64 {
            let page = n % 2000;
            for turn in 0..threads * if page < 10 { 10 } else { 1 } {
                sharing.add(&sample(turn % threads, page << 12));
            }
        }
        let stats = sharing.stats();
        assert_eq!(stats.thinned, thinned, "{stats:?}");
        assert!(sharing.page(key(wide)).is_none());
        for page in 0..10 {
            assert_eq!(sharing.page(key(page)).map(|page| page.weight), Some(100 * threads * EVENT));
            let touches: Vec<u32> =
                sharing.touches().filter(|touch| touch.page == key(page)).map(|touch| touch.weight).collect();
            assert_eq!(touches, vec![100 * EVENT; threads as usize]);
        }
    }
}

#[test]
fn files_beyond_those_with_a_name_count_too() {
    let mut sharing = Sharing::new(0);
    for ino in 0..OBJECTS as u64 + 100 {
        let place = Some(Place::Shared { dev: 1, ino, offset: 0x1000 });
        sharing.add(&Sample { place, ..Sample::default() });
    }
    assert_eq!((sharing.names.len(), sharing.objects.len()), (OBJECTS, OBJECTS));
    let file = |ino: u64| Place::Shared { dev: 1, ino, offset: 0x1000 };
    let kept = (1 << 32..1 << 33).map(file).find(|&place| place_key(place) < sharing.threshold).unwrap();
    sharing.add(&Sample { place: Some(kept), ..Sample::default() });
    let page = sharing.page(place_key(kept)).unwrap();
    assert_eq!((page.weight, sharing.page_place(page)), (EVENT, None));
}

#[test]
fn shares_of_an_event_add_up_to_it() {
    let mut sharing = Sharing::new(1 << 16);
    for addr in [0x1000, 0x1040, 0x2000, 0x3000] {
        sharing.add(&Sample { share: 0.25, ..sample(0, addr) });
    }
    assert_eq!(sharing.threads()[0].weight, u64::from(EVENT));
    sharing.add(&Sample { share: f32::NAN, ..sample(0, 0x1000) });
    sharing.add(&Sample { thread: u32::MAX, ..sample(0, 0x1000) });
    sharing.add(&Sample { place: None, ..sample(0, 0) });
    let stats = sharing.stats();
    assert_eq!((stats.samples, stats.without_thread, stats.without_place), (5, 1, 1));
}

#[test]
fn what_writes_counts_as_writing() {
    let mut sharing = Sharing::new(0);
    for access in [Access::Load, Access::Store, Access::Update] {
        sharing.add(&Sample { access, ..sample(0, 0x1000) });
    }
    assert_eq!(sharing.threads()[0].writes, 2 * u64::from(EVENT));
    assert!(sharing.touches().all(|touch| (touch.weight, touch.writes) == (3 * EVENT, 2 * EVENT)));
    assert!(sharing.lines().all(|line| (line.weight, line.writes) == (3 * EVENT, 2 * EVENT)));
}

#[test]
fn counts_stay_at_the_most() {
    let mut sharing = Sharing::new(0);
    sharing.add(&sample(0, 0x1000));
    sharing.pages.slots.iter_mut().filter(|it| !it.is_empty()).for_each(|it| it.weight = u32::MAX);
    sharing.lines.slots.iter_mut().filter(|it| !it.is_empty()).for_each(|it| it.weight = u32::MAX);
    sharing.touches.slots.iter_mut().filter(|it| !it.is_empty()).for_each(|it| it.weight = u32::MAX);
    sharing.add(&Sample { latency: u32::MAX, ..sample(0, 0x1000) });
    assert!(sharing.pages.iter().all(|page| page.weight == u32::MAX && page.latency == 1 << 22));
    assert!(sharing.lines().all(|line| line.weight == u32::MAX));
    assert!(sharing.touches().all(|touch| touch.weight == u32::MAX));
    assert_eq!((sharing.pages.len, sharing.lines.len, sharing.touches.len), (1, 1, 1));
}
