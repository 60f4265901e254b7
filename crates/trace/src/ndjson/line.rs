//! The fields of the lines.

use std::borrow::Cow;

use serde::Deserialize;

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Task<'a> {
    pub(super) tid: Option<u32>,
    #[serde(default)]
    pub(super) pid: u32,
    #[serde(borrow, default)]
    pub(super) comm: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) pcomm: Option<Cow<'a, str>>,
}

/// A line of any type.
#[derive(Debug, Deserialize)]
pub(super) struct Line<'a> {
    pub(super) ts: f64,
    #[serde(borrow)]
    pub(super) t: Cow<'a, str>,
    pub(super) cpu: Option<u32>,
    pub(super) numa: Option<u32>,
    #[serde(borrow)]
    pub(super) task: Option<Task<'a>>,
    #[serde(borrow)]
    pub(super) prev: Option<Task<'a>>,
    #[serde(borrow)]
    pub(super) next: Option<Task<'a>>,
    #[serde(borrow)]
    pub(super) waker: Option<Task<'a>>,
    #[serde(borrow)]
    pub(super) wakee: Option<Task<'a>>,
    #[serde(borrow)]
    pub(super) child: Option<Task<'a>>,
    #[serde(borrow)]
    pub(super) prev_state: Option<Cow<'a, str>>,
    pub(super) waking_ts: Option<f64>,
    #[serde(borrow)]
    pub(super) waking_reason: Option<Cow<'a, str>>,
    pub(super) waking_cpu: Option<u32>,
    pub(super) offcpu_dur: Option<f64>,
    pub(super) compound_delay: Option<f64>,
    pub(super) compound_chain_len: Option<u64>,
    pub(super) pmus: Option<Vec<Option<f64>>>,
    pub(super) dur: Option<f64>,
    pub(super) start_ts: Option<f64>,
    pub(super) irq: Option<u32>,
    #[serde(borrow)]
    pub(super) action: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) kind: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub(super) desc: Option<Cow<'a, str>>,
    pub(super) target_cpu: Option<u32>,
    pub(super) sender_cpu: Option<u32>,
    pub(super) ipi_delay: Option<f64>,
    #[serde(borrow)]
    pub(super) insert_type: Option<Cow<'a, str>>,
    pub(super) dsq_id: Option<i128>,
    pub(super) layer_id: Option<i64>,
    #[serde(borrow)]
    pub(super) event: Option<Cow<'a, str>>,
    pub(super) req_id: Option<u64>,
    #[serde(borrow)]
    pub(super) req_name: Option<Cow<'a, str>>,
    pub(super) latency: Option<f64>,
    pub(super) stack_id: Option<u64>,
    pub(super) offcpu_stack_id: Option<u64>,
    pub(super) waker_stack_id: Option<u64>,
}

/// A call stack, outermost frame first.
#[derive(Debug, Deserialize)]
pub(super) struct Stack<'a> {
    pub(super) id: u64,
    #[serde(borrow)]
    pub(super) frames: Vec<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub(super) srcs: Vec<Cow<'a, str>>,
}

/// ns since 1970 of a time such as `2026-11-22T11:47:06.962Z`.
pub(super) fn since_1970(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (time.next()?.parse::<u64>().ok()?, time.next()?.parse::<u64>().ok()?);
    let second = time.next()?.parse::<f64>().ok().filter(|second| (0.0..61.0).contains(second))?;
    let is_date = (1970..10_000).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    if !is_date || hour > 23 || minute > 59 {
        return None;
    }
    // Days since 1970-01-01 of the proleptic Gregorian calendar, the year beginning in March.
    let shifted = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = 365 * shifted + shifted / 4 - shifted / 100 + shifted / 400 + of_year - 719_468;
    let seconds = u64::try_from(days).ok()? * 86_400 + hour * 3_600 + minute * 60;
    Some(seconds * 1_000_000_000 + (second * 1e9).round() as u64)
}
