// Four threads in two groups, each with collections of its own: a hash map, a tree, a heap, sorted and formatted text.
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fmt::Write;

fn next_random(state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state
}

fn work(seed: u32) -> usize {
    let mut state = seed;
    let (mut map, mut tree, mut heap) = (HashMap::new(), BTreeMap::new(), BinaryHeap::new());
    let mut text = String::new();
    let mut found = 0;
    loop {
        let mut numbers: Vec<u32> = (0..40).map(|_| next_random(&mut state) % 4096).collect();
        numbers.sort_unstable();
        for number in &numbers {
            *map.entry(*number).or_insert(0u64) += 1;
            tree.insert(number.rotate_left(7), f64::from(*number).sqrt());
            heap.push((number % 97, *number));
            if heap.len() > 500 {
                found += heap.pop().map_or(0, |(_, number)| number as usize);
            }
        }
        text.clear();
        for (number, root) in tree.range(numbers[0]..).take(8) {
            write!(text, "{number}:{root:.3} ").unwrap();
        }
        found += text.split(' ').filter_map(|word| word.split(':').next()?.parse::<usize>().ok()).sum::<usize>() % 3;
        if tree.len() > 3000 {
            tree = tree.split_off(&(1 << 17));
        }
        if std::hint::black_box(found) == usize::MAX {
            return found;
        }
    }
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(1.0);
    for number in 0..4u32 {
        let group = if number < 2 { "collections-a" } else { "collections-b" };
        let run = move || {
            // "PID/task/TID".
            let thread = std::fs::read_link("/proc/thread-self").unwrap();
            let mut ids = thread.to_str().unwrap().split("/task/");
            let [pid, tid] = [(); 2].map(|()| ids.next().unwrap().to_owned());
            println!("thread group={group} pid={pid} tid={tid} name={group}");
            work(number * 7919 + 1)
        };
        std::thread::Builder::new().name(group.to_owned()).spawn(run).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
}
