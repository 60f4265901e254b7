//! Writes traces by hand: what no recorder here writes.

/// A message.
#[derive(Debug, Clone, Default)]
pub struct Message(pub Vec<u8>);

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

impl Message {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn int(mut self, field: u32, value: u64) -> Self {
        varint(&mut self.0, u64::from(field) << 3);
        varint(&mut self.0, value);
        self
    }

    pub fn fixed(mut self, field: u32, value: u64) -> Self {
        varint(&mut self.0, u64::from(field) << 3 | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn double(self, field: u32, value: f64) -> Self {
        self.fixed(field, value.to_bits())
    }

    pub fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        varint(&mut self.0, u64::from(field) << 3 | 2);
        varint(&mut self.0, value.len() as u64);
        self.0.extend(value);
        self
    }

    pub fn text(self, field: u32, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }

    pub fn message(self, field: u32, value: &Self) -> Self {
        self.bytes(field, &value.0)
    }

    pub fn packed(self, field: u32, values: &[u64]) -> Self {
        let mut bytes = Vec::new();
        for value in values {
            varint(&mut bytes, *value);
        }
        self.bytes(field, &bytes)
    }
}

/// A file of these packets.
pub fn file(packets: &[Message]) -> Vec<u8> {
    packets.iter().fold(Message::new(), |file, packet| file.message(1, packet)).0
}

/// A packet of a sequence.
pub fn packet(sequence: u64) -> Message {
    Message::new().int(10, sequence)
}

/// A packet with a bundle of ftrace events.
pub fn bundle(cpu: u64, lost: bool, events: &[Message]) -> Message {
    let bundle = Message::new().int(1, cpu).int(3, u64::from(lost));
    let bundle = events.iter().fold(bundle, |bundle, event| bundle.message(2, event));
    packet(1).message(1, &bundle)
}

/// An ftrace event by the thread `tid`.
pub fn event(time: u64, tid: u64, field: u32, inner: &Message) -> Message {
    Message::new().int(1, time).int(2, tid).message(field, inner)
}

pub fn switch(time: u64, prev: u64, state: u64, next: u64) -> Message {
    let name = |tid: u64| format!("t{tid}");
    let inner = Message::new().text(1, &name(prev)).int(2, prev).int(4, state);
    event(time, prev, 4, &inner.text(5, &name(next)).int(6, next))
}

pub fn waking(time: u64, waker: u64, tid: u64, cpu: u64) -> Message {
    event(time, waker, 20, &Message::new().text(1, &format!("t{tid}")).int(2, tid).int(5, cpu))
}

/// A track of a thread.
pub fn thread_track(uuid: u64, pid: u64, tid: u64, name: &str) -> Message {
    let thread = Message::new().int(1, pid).int(2, tid).text(5, name);
    packet(7).message(60, &Message::new().int(1, uuid).message(4, &thread))
}

/// A slice event of a track: type, category and name as text.
pub fn slice(kind: u64, track: u64, category: &str, name: &str) -> Message {
    Message::new().int(9, kind).int(11, track).text(22, category).text(23, name)
}

/// Annotations by name.
pub fn int_arg(name: &str, value: u64) -> Message {
    Message::new().text(10, name).int(4, value)
}

pub fn text_arg(name: &str, value: &str) -> Message {
    Message::new().text(10, name).text(6, value)
}

/// A packet with a track event.
pub fn at(time: u64, event: &Message, args: &[Message]) -> Message {
    let event = args.iter().fold(event.clone(), |event, arg| event.message(4, arg));
    packet(7).int(8, time).message(11, &event)
}

/// Categories that make a trace one of wprof, in a table.
pub fn wprof_tables() -> Message {
    let entry = |iid, name: &str| Message::new().int(1, iid).text(2, name);
    let interned = Message::new().message(1, &entry(1, "ONCPU")).message(1, &entry(2, "WAKER"));
    packet(7).message(12, &interned).int(13, 1)
}
