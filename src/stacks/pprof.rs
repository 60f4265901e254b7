//! pprof's format, which `go tool pprof` and others read: a gzipped message
//! (<https://github.com/google/pprof/blob/main/proto/profile.proto>).

use std::io::{self, Write};

use flate2::write::GzEncoder;
use flate2::Compression;
use rustc_hash::FxHashMap;

use super::profile::StackProfile;
use scxprof_trace::write::Message;

/// The texts of the message by their number; the first is empty.
struct Texts {
    list: Vec<String>,
    numbers: FxHashMap<String, u64>,
}

impl Texts {
    fn number(&mut self, text: &str) -> u64 {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let number = self.list.len() as u64;
        self.list.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        number
    }
}

/// Writes the profile: samples and events of each thread and stack, with the labels `thread`, `process`, `pid`, `tid`, `cgroup`,
/// `subcell` and `hint`. A frame has a location of its own, inlined functions too.
///
/// # Errors
/// `out` cannot be written.
pub fn pprof(profile: &StackProfile, out: impl Write) -> io::Result<()> {
    let mut texts = Texts { list: Vec::new(), numbers: FxHashMap::default() };
    texts.number("");
    let unit = if profile.is_clock { "nanoseconds" } else { "count" };
    let mut value_type = |kind: &str, unit: &str| {
        let (kind, unit) = (texts.number(kind), texts.number(unit));
        Message::new().int(1, kind).int(2, unit)
    };
    let (of_samples, of_events) = (value_type("samples", "count"), value_type(&profile.event, unit));
    let mut whole = Message::new().message(1, &of_samples).message(1, &of_events);
    for row in &profile.rows {
        let stack = profile.stacks.get(row.stack as usize).map_or(&[][..], |frames| frames);
        let mut sample = Message::new();
        for &frame in stack {
            sample = sample.int(1, u64::from(frame) + 1);
        }
        sample = sample.int(2, row.samples).int(2, row.events);
        if let Some(thread) = profile.thread(row) {
            let said = [
                ("thread", Some(&thread.comm)),
                ("process", Some(&thread.process)),
                ("cgroup", Some(&thread.cgroup)),
                ("subcell", thread.subcell.as_ref()),
            ];
            for (key, text) in said {
                if let Some(text) = text.filter(|text| !text.is_empty()) {
                    let label = Message::new().int(1, texts.number(key)).int(2, texts.number(text));
                    sample = sample.message(3, &label);
                }
            }
            let numbers = [("pid", Some(thread.pid.into())), ("tid", Some(thread.tid.into())), ("hint", thread.hint)];
            for (key, number) in numbers {
                if let Some(number) = number {
                    sample = sample.message(3, &Message::new().int(1, texts.number(key)).int(3, number));
                }
            }
        }
        whole = whole.message(2, &sample);
    }
    let mut modules: FxHashMap<&[u8], u64> = FxHashMap::default();
    for (frame, number) in profile.frames.iter().zip(1u64..) {
        let next = modules.len() as u64 + 1;
        let module = *modules.entry(&frame.module).or_insert(next);
        if module == next {
            let path = texts.number(&crate::sample::printable(&frame.module));
            // It has functions, file names, line numbers and inlined frames, as far as they are known: nothing is to be looked up.
            let mapping = Message::new().int(1, module).int(5, path).int(7, 1).int(8, 1).int(9, 1).int(10, 1);
            whole = whole.message(3, &mapping);
        }
        let line = Message::new().int(1, number).int(2, frame.line.into());
        whole = whole.message(4, &Message::new().int(1, number).int(2, module).message(4, &line));
        let name = texts.number(&frame.name());
        let mut function = Message::new().int(1, number).int(2, name).int(3, name);
        if let Some(file) = &frame.file {
            function = function.int(4, texts.number(file));
        }
        whole = whole.message(5, &function);
    }
    if let Some(begin) = profile.begin_unix {
        whole = whole.int(9, (begin * 1e9) as u64);
    }
    whole = whole.int(10, profile.duration_ns).message(11, &of_events).int(12, profile.period.unwrap_or(0));
    for text in &texts.list {
        whole = whole.text(6, text.as_bytes());
    }
    let mut packed = GzEncoder::new(out, Compression::default());
    packed.write_all(whole.as_bytes())?;
    packed.finish()?.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::super::profile::tests::made;
    use super::*;
    use scxprof_trace::wire::Fields;

    #[test]
    fn what_is_written_is_read() {
        let mut profile = made(&[("a", "main;work", 3), ("b", "main", 4)]);
        profile.event = "cpu-clock".to_owned();
        (profile.is_clock, profile.threads[1].hint) = (true, Some(7));
        profile.frames[0].line = 12;
        profile.frames[0].file = Some("work.c".into());
        let mut packed = Vec::new();
        pprof(&profile, &mut packed).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&*packed).read_to_end(&mut bytes).unwrap();
        let all = |number: u32| Fields::new(&bytes).filter(move |field| field.0 == number).map(|field| field.1);
        let texts: Vec<String> = all(6).map(|text| String::from_utf8(text.bytes().to_vec()).unwrap()).collect();
        assert_eq!(texts[0], "");
        let get = |message: &[u8], number: u32| -> Vec<u64> {
            Fields::new(message).filter(|field| field.0 == number).map(|field| field.1.uint()).collect()
        };
        let text = |message: &[u8], number: u32| texts[get(message, number)[0] as usize].clone();
        let types: Vec<_> = all(1).map(|kind| (text(kind.bytes(), 1), text(kind.bytes(), 2))).collect();
        let kind = |name: &str, unit: &str| (name.to_owned(), unit.to_owned());
        assert_eq!(types, [kind("samples", "count"), kind("cpu-clock", "nanoseconds")]);
        let functions: Vec<_> = all(5).map(|function| text(function.bytes(), 2)).collect();
        let mut found = Vec::new();
        for sample in all(2) {
            let stack: Vec<_> = get(sample.bytes(), 1).iter().map(|at| functions[*at as usize - 1].clone()).collect();
            let labels = Fields::new(sample.bytes()).filter(|field| field.0 == 3).count();
            found.push((stack.join(" < "), get(sample.bytes(), 2), labels));
        }
        assert_eq!(found, [("work < main".to_owned(), vec![3, 30], 4), ("main".to_owned(), vec![4, 40], 5)]);
        assert_eq!((all(3).count(), all(4).count()), (1, 2));
        let first = all(5).next().unwrap();
        assert_eq!(text(first.bytes(), 4), "work.c");
        let line = Fields::new(all(4).next().unwrap().bytes()).find(|field| field.0 == 4).unwrap().1;
        assert_eq!(get(line.bytes(), 2), [12]);
    }
}
