// Four threads in two groups, each with collections of its own: a hash map, a tree, a heap, sorted and formatted text. A round is
// short, so that some thousand instructions have all of it.
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fmt::Write;

fn next_random(state: &mut u32) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    *state
}

/// Works for ever; says so by `ready` once the collections have something in them.
fn work(seed: u32, ready: impl Fn()) -> usize {
    let mut state = seed;
    let (mut map, mut tree, mut heap) = (HashMap::new(), BTreeMap::new(), BinaryHeap::new());
    let mut text = String::new();
    let mut found = 0;
    for round in 0u64.. {
        if round == 300 {
            ready();
        }
        let mut numbers: Vec<u32> = (0..3).map(|_| next_random(&mut state) % 4096).collect();
        numbers.sort_unstable();
        for number in &numbers {
            *map.entry(*number).or_insert(0u64) += 1;
            tree.insert(number.rotate_left(7), f64::from(*number).sqrt());
            heap.push((number % 97, *number));
            if heap.len() > 500 {
                found += heap.pop().map_or(0, |(_, number)| number as usize);
            }
        }
        // Text is made on the stack, which says nothing of what is shared.
        if numbers[0] % 16 == 0 {
            text.clear();
            for (number, root) in tree.range(numbers[0]..).take(2) {
                write!(text, "{number}:{root:.3} ").unwrap();
            }
            let words = text.split(' ').filter_map(|word| word.split(':').next()?.parse::<usize>().ok());
            found += words.sum::<usize>() % 3;
        }
        if tree.len() > 3000 {
            tree = tree.split_off(&(1 << 17));
        }
        found = std::hint::black_box(found);
    }
    found
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(1.0);
    for number in 0..4u32 {
        let group = if number < 2 { "collections-a" } else { "collections-b" };
        let ready = move || {
            // "PID/task/TID".
            let thread = std::fs::read_link("/proc/thread-self").unwrap();
            let mut ids = thread.to_str().unwrap().split("/task/");
            let [pid, tid] = [(); 2].map(|()| ids.next().unwrap().to_owned());
            println!("thread group={group} pid={pid} tid={tid} name={group}");
        };
        let run = move || work(number * 7919 + 1, ready);
        std::thread::Builder::new().name(group.to_owned()).spawn(run).unwrap();
    }
    std::thread::sleep(std::time::Duration::from_secs_f64(seconds));
}
