//! Scenarios in Rust: `service SCENARIO [SECONDS [TAG [THREADS]]]`; without arguments lists them. See README.md.
//!
//! Uses only std, so that a bare `rustc` builds it: threads share through `Arc`, in collections that services use.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::Duration;

/// Set when the time is over.
static STOP: AtomicBool = AtomicBool::new(false);
/// Uses the loaded values.
static SINK: AtomicU64 = AtomicU64::new(0);

/// One round of work; returns what it has loaded.
type Work = Box<dyn FnMut(&mut u64) -> u64 + Send>;

/// A thread, in a group that shares memory or alone.
struct Worker {
    group: Option<usize>,
    work: Work,
}

struct Scenario {
    name: &'static str,
    threads: usize,
    make: fn(usize) -> Vec<Worker>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "rust-maps", threads: 6, make: maps },
    Scenario { name: "rust-trees", threads: 6, make: trees },
    Scenario { name: "rust-channels", threads: 6, make: channels },
    Scenario { name: "rust-private", threads: 6, make: private },
];

fn draw(random: &mut u64) -> u64 {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    *random >> 11
}

/// Two groups, each with a hash map behind a lock; the maps grew in turn.
fn maps(threads: usize) -> Vec<Worker> {
    let maps: Vec<_> = (0..2).map(|_| Arc::new(RwLock::new(HashMap::<u64, Box<[u64; 6]>>::new()))).collect();
    for key in 0..16_384 {
        for map in &maps {
            map.write().unwrap().insert(key, Box::new([key; 6]));
        }
    }
    let worker = |index: usize| {
        let map = Arc::clone(&maps[index % 2]);
        let work = move |random: &mut u64| {
            let mut sum = 0;
            for _ in 0..64 {
                let map = map.read().unwrap();
                for _ in 0..8 {
                    sum += map.get(&(draw(random) % 16_384)).map_or(0, |value| value[3]);
                }
            }
            if let Some(value) = map.write().unwrap().get_mut(&(draw(random) % 16_384)) {
                value[0] += sum;
            }
            sum
        };
        Worker { group: Some(index % 2), work: Box::new(work) }
    };
    (0..threads).map(worker).collect()
}

/// Three groups, each with an ordered map in which one thread replaces parts; and a configuration that all read.
fn trees(threads: usize) -> Vec<Worker> {
    let limits: Arc<Vec<u64>> = Arc::new((1..65).collect());
    let trees: Vec<_> = (0..3).map(|_| Arc::new(Mutex::new(BTreeMap::<u64, u64>::new()))).collect();
    for key in 0..30_000 {
        for tree in &trees {
            tree.lock().unwrap().insert(key * 7, key);
        }
    }
    let worker = |index: usize| {
        let (tree, limits) = (Arc::clone(&trees[index % 3]), Arc::clone(&limits));
        let work = move |random: &mut u64| {
            let mut sum = 0;
            for _ in 0..16 {
                let from = draw(random) % 200_000;
                let mut tree = tree.lock().unwrap();
                sum += tree.range(from..).take(20).map(|(_, value)| value % limits[(from % 64) as usize]).sum::<u64>();
                if let Some((_, value)) = tree.range_mut(from..).next() {
                    *value += 1;
                }
            }
            sum
        };
        Worker { group: Some(index % 3), work: Box::new(work) }
    };
    (0..threads).map(worker).collect()
}

/// Pairs: one sends buffers, the other reads them and sends them back.
fn channels(threads: usize) -> Vec<Worker> {
    let pair = |group: usize| {
        let (to, from_first): (SyncSender<Vec<u64>>, Receiver<_>) = sync_channel(64);
        let (back, from_second) = sync_channel(64);
        for _ in 0..32 {
            back.send(vec![0; 4096]).unwrap();
        }
        let send = move |random: &mut u64| {
            if let Ok(mut buffer) = from_second.try_recv() {
                let first = draw(random);
                (first..).zip(buffer.iter_mut()).for_each(|(value, word)| *word = value);
                let _ = to.try_send(buffer);
            }
            0
        };
        let receive = move |_: &mut u64| {
            let Ok(mut buffer) = from_first.try_recv() else { return 0 };
            let sum = buffer.iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
            buffer[0] = sum;
            let _ = back.try_send(buffer);
            sum
        };
        let work: [Work; 2] = [Box::new(send), Box::new(receive)];
        work.map(|work| Worker { group: Some(group), work })
    };
    (0..threads / 2).flat_map(pair).collect()
}

/// Threads with their own collections, from one allocator, and a common counter that they use now and then.
fn private(threads: usize) -> Vec<Worker> {
    let total = Arc::new(AtomicU64::new(0));
    let worker = |_| {
        let total = Arc::clone(&total);
        let mut map: HashMap<u64, Vec<u64>> = HashMap::new();
        let work = move |random: &mut u64| {
            let mut sum = 0;
            for _ in 0..512 {
                let (key, value) = (draw(random) % 4096, draw(random));
                let values = map.entry(key).or_default();
                values.push(value);
                sum += values.iter().fold(0u64, |sum, value| sum ^ value);
                if values.len() > 16 {
                    map.remove(&key);
                }
            }
            total.fetch_add(1, Ordering::Relaxed);
            sum
        };
        Worker { group: None, work: Box::new(work) }
    };
    (0..threads).map(worker).collect()
}

/// Describes itself, then works until the time is over.
fn run(name: &str, group: Option<usize>, mut work: Work, seed: u64) {
    let ids = std::fs::read_link("/proc/thread-self").unwrap();
    let mut ids = ids.to_str().unwrap().split('/');
    let (pid, tid) = (ids.next().unwrap(), ids.nth(1).unwrap());
    let group = group.map_or("-".to_owned(), |group| group.to_string());
    println!("thread group={group} pid={pid} tid={tid} name={name}");
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut sum = 0u64;
    while !STOP.load(Ordering::Relaxed) {
        for _ in 0..24 {
            sum = sum.wrapping_add(work(&mut random));
        }
        thread::sleep(Duration::from_micros(200));
    }
    SINK.fetch_add(sum, Ordering::Relaxed);
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let Some(name) = args.get(1) else {
        for scenario in SCENARIOS {
            println!("{} {}", scenario.name, scenario.threads);
        }
        return;
    };
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name).expect("a scenario");
    let seconds = args.get(2).map_or(1.0, |seconds| seconds.parse().expect("seconds"));
    let tag = args.get(3).map_or("", String::as_str);
    let threads = args.get(4).map_or(scenario.threads, |threads| threads.parse().expect("a number of threads"));
    let workers = (scenario.make)(threads);
    println!("program threads={}", workers.len());
    let mut seats: HashMap<Option<usize>, usize> = HashMap::new();
    let started: Vec<_> = workers
        .into_iter()
        .zip(1..)
        .map(|(Worker { group, work }, seed)| {
            let seat = seats.entry(group).or_default();
            *seat += 1;
            let role = group.map_or("solo", |_| ["put", "get", "log"][(*seat - 1) % 3]);
            let letter = char::from(b'a' + group.unwrap_or(*seat - 1) as u8);
            let name = format!("{tag}{role}-a{letter}");
            let run = move || run(&thread::current().name().unwrap_or_default().to_owned(), group, work, seed);
            thread::Builder::new().name(name).spawn(run).unwrap()
        })
        .collect();
    thread::sleep(Duration::from_secs_f64(seconds));
    STOP.store(true, Ordering::Relaxed);
    for thread in started {
        let _ = thread.join();
    }
}
