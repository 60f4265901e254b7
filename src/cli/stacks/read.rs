//! Call stacks that were recorded: perf.data, traces and folded text.

use std::path::Path;

use anyhow::anyhow;

use super::super::failure::Failure;
use super::super::input::{self, Damage, InputKind};
use super::super::signals::Signals;
use super::{named, Observed, StacksArgs};
use crate::host::facts::Tasks;
use crate::host::Roots;
use crate::profile::ChainEvent;
use crate::session::{Outcome, StackSink};
use crate::stacks::{parse_folded, FoldedError, FoldedStacks, TracedStacks};

/// Reads what the file is.
pub(super) fn read(args: &StacksArgs, path: &Path) -> Result<Observed, Failure> {
    match input::kind(path) {
        InputKind::Trace => of_trace(args, path),
        InputKind::Profile => of_recording(args, path),
        InputKind::Unknown => of_folded(args, path),
    }
}

fn of_recording(args: &StacksArgs, path: &Path) -> Result<Observed, Failure> {
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let stop = || signals.seen();
    let roots = Roots::default();
    let memory = args.tuning.memory(&roots)?;
    let mut recording = input::profile(path, &stop)?;
    let wanted = args.event.as_deref();
    let all = recording.stack_events();
    let Some(event) = recording.stack_event(wanted) else {
        let of = wanted.map_or_else(String::new, |name| format!(" of {name}"));
        let but = if all.is_empty() {
            "; `perf record -g` records them".to_owned()
        } else {
            let names: Vec<&str> = all.iter().map(|event| event.name.as_str()).collect();
            format!(", but of {}; -e selects one", names.join(", "))
        };
        return Err(Failure::NoResult(anyhow!("{} has no call chains{of}{but}", path.display())));
    };
    let mut sink = StackSink::of_events(&event.numbers);
    let outcome = input::read(input::session(&mut recording, memory), &mut sink, &stop)?;
    say_others(&all, &sink, wanted.is_some());
    let begin = recording.recorded_here(&roots);
    let mut profile = named(args, &sink, &outcome, (begin, roots));
    (profile.event, profile.is_clock) = (event.name, event.is_clock);
    let tasks = Some(input::recorded_tasks(&recording));
    Ok(Observed { profile, outcome, damage: Damage::of_profile(&recording), status: None, tasks })
}

/// Says which samples with call stacks were left out, unless the user selected some.
fn say_others(all: &[ChainEvent], sink: &StackSink, is_selected: bool) {
    let left_out = |event: &ChainEvent| {
        let count: u64 = event.numbers.iter().map(|&number| sink.of_other(number)).sum();
        (count > 0).then(|| format!("{count} samples of {}", event.name))
    };
    let left_out: Vec<String> = all.iter().filter_map(left_out).collect();
    if !left_out.is_empty() && !is_selected {
        say!("note: {} are left out: -e selects another event", left_out.join(", "));
    }
}

fn of_trace(args: &StacksArgs, path: &Path) -> Result<Observed, Failure> {
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let mut stacks = TracedStacks::default();
    let trace = input::read_trace(input::trace(path)?, path, None, &mut stacks, &|| signals.seen())?;
    if stacks.left_out() > 0 {
        say!("note: {} call stacks are left out: there are too many different ones", stacks.left_out());
    }
    let wanted = args.event.as_deref();
    let Some(profile) = stacks.profile(&trace, wanted) else {
        let kinds: Vec<String> = stacks.kinds(&trace).into_iter().map(|(name, _)| name).collect();
        return Err(Failure::NoResult(match wanted {
            Some(wanted) if !kinds.is_empty() => {
                anyhow!("{} has no call stacks of {wanted}, but of {}", path.display(), kinds.join(", "))
            }
            _ => anyhow!("{} has no call stacks", path.display()),
        }));
    };
    let damage = Damage::of_trace(trace.damage());
    Ok(Observed { profile, outcome: Outcome::default(), damage, status: None, tasks: Some(Tasks::default()) })
}

fn of_folded(args: &StacksArgs, path: &Path) -> Result<Observed, Failure> {
    let FoldedStacks { mut profile, notes } = parse_folded(input::text(path)?).map_err(|error| match error {
        FoldedError::Line { line: 1 } => Failure::Usage(anyhow!(
            "{} is none of: a perf.data or a profile of `record`, a trace, folded stacks (its first line is none)",
            path.display()
        )),
        error => Failure::Usage(anyhow!("{}: {error}", path.display())),
    })?;
    for note in notes {
        say!("note: {note}");
    }
    // The text does not say of what it is.
    profile.event = args.event.clone().unwrap_or_else(|| "folded stacks".to_owned());
    let damage = Damage::default();
    Ok(Observed { profile, outcome: Outcome::default(), damage, status: None, tasks: Some(Tasks::default()) })
}
