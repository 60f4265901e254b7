//! How the steps of a command ended, and which of them its exit code tells.

use anyhow::anyhow;

use super::args::MaxLossArgs;
use super::failure::{Done, Failure};
use crate::session::{Loss, SchedLoss};

/// The steps at the end of a command. If several fail, the first of these decides the exit code: a missing result comes
/// before what could not be written, that before what a result is worth, and what was lost comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Waiting for the command that was profiled.
    Wait,
    /// The decision, and the report on it. There may be no samples, and the configuration may not fit the host.
    Decision,
    /// Writing the result.
    Result,
    /// Writing what else is made of the report.
    Report,
    /// Writing the evidence for a fleet.
    Evidence,
    /// The score that is asked for.
    Score,
    /// Reading all of the input.
    Damage,
    /// The command that was profiled.
    Command,
    /// Losing no more samples than allowed.
    Loss,
    /// Losing no more scheduling events than allowed.
    SchedLoss,
}

/// The steps that failed so far.
#[derive(Debug, Default)]
pub(super) struct Ends(Vec<(Step, Failure)>);

impl Ends {
    /// Notes how a step ended; returns what it gave.
    pub(super) fn note<T>(&mut self, step: Step, ended: Result<T, Failure>) -> Option<T> {
        match ended {
            Ok(given) => Some(given),
            Err(failure) => {
                self.0.push((step, failure));
                None
            }
        }
    }

    /// Notes the status of the command that was profiled, if there was one that could be waited for.
    pub(super) fn command(&mut self, status: Result<Option<u8>, Failure>) {
        if let Some(Some(status)) = self.note(Step::Wait, status) {
            self.note(Step::Command, if status == 0 { Ok(()) } else { Err(Failure::Command(status)) });
        }
    }

    /// Notes whether too many samples were lost.
    pub(super) fn loss(&mut self, allowed: &MaxLossArgs, loss: &Loss) {
        let (percent, max_loss) = (loss.percent(), allowed.max_loss);
        if percent > max_loss {
            let error = anyhow!(
                "{percent:.1} % of the samples were lost, more than --max-loss {max_loss}: the result may be wrong"
            );
            self.0.push((Step::Loss, Failure::Loss(error)));
        }
    }

    /// The same for the scheduler's events.
    pub(super) fn sched_loss(&mut self, allowed: &MaxLossArgs, loss: &SchedLoss) {
        let (percent, max_loss) = (loss.percent(), allowed.max_loss);
        if percent > max_loss {
            let error = anyhow!(
                "{percent:.1} % of the scheduling events were lost, more than --max-loss {max_loss}: lines with losses are too low"
            );
            self.0.push((Step::SchedLoss, Failure::Loss(error)));
        }
    }

    /// True unless there is no result, or not all of it.
    pub(super) fn has_result(&self) -> bool {
        self.0.iter().all(|(step, _)| *step > Step::Evidence)
    }

    /// The end of the command: the failure of the first [`Step`] that has one, of those of one step the first that was noted.
    pub(super) fn end(self) -> Done {
        self.0.into_iter().min_by_key(|(step, _)| *step).map_or(Ok(()), |(_, failure)| Err(failure))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How each step fails, from what wins over all others to what loses to all.
    fn failures() -> Vec<(Step, Failure, &'static str)> {
        let error = |text: &'static str| anyhow!(text);
        vec![
            (Step::Wait, Failure::NoResult(error("wait")), "wait"),
            (Step::Decision, Failure::DoesNotFit(error("does not fit")), "does not fit"),
            (Step::Result, Failure::NoResult(error("-o")), "-o"),
            (Step::Report, Failure::NoResult(error("--report")), "--report"),
            (Step::Evidence, Failure::NoResult(error("--evidence")), "--evidence"),
            (Step::Score, Failure::DoesNotFit(error("--at-least")), "--at-least"),
            (Step::Damage, Failure::Loss(error("damaged")), "damaged"),
            (Step::Command, Failure::Command(7), "the command ended with 7"),
            (Step::Loss, Failure::Loss(error("samples")), "samples"),
            (Step::SchedLoss, Failure::Loss(error("scheduling events")), "scheduling events"),
        ]
    }

    #[test]
    fn of_two_failures_the_earlier_step_wins_whichever_came_first() {
        for (at, (_, _, winner)) in failures().iter().enumerate() {
            for other in at + 1..failures().len() {
                for is_turned in [false, true] {
                    let mut both: Vec<_> =
                        failures().into_iter().enumerate().filter(|(it, _)| [at, other].contains(it)).collect();
                    if is_turned {
                        both.reverse();
                    }
                    let mut ends = Ends::default();
                    for (_, (step, failure, _)) in both {
                        assert!(ends.note::<()>(step, Err(failure)).is_none());
                    }
                    assert_eq!(ends.end().unwrap_err().sentence(), *winner);
                }
            }
        }
    }

    #[test]
    fn each_failure_alone_is_the_end() {
        for (step, failure, sentence) in failures() {
            let mut ends = Ends::default();
            ends.note::<()>(step, Err(failure));
            assert_eq!(ends.has_result(), step > Step::Evidence);
            assert_eq!(ends.end().unwrap_err().sentence(), sentence);
        }
        let mut ends = Ends::default();
        assert_eq!(ends.note(Step::Result, Ok(5)), Some(5));
        assert!(ends.has_result() && ends.end().is_ok());
    }

    #[test]
    fn of_one_step_the_first_failure_counts() {
        let mut ends = Ends::default();
        for option in ["--report", "--html"] {
            ends.note::<()>(Step::Report, Err(Failure::NoResult(anyhow!(option))));
        }
        assert_eq!(ends.end().unwrap_err().sentence(), "--report");
    }

    #[test]
    fn a_command_that_fails_comes_before_what_was_lost() {
        let lost = Loss { samples: 1, ring_full: 1, ..Loss::default() };
        for (max_loss, status, expected) in [
            (1.0, Ok(Some(3)), Some("the command ended with 3")),
            (
                1.0,
                Ok(Some(0)),
                Some("50.0 % of the samples were lost, more than --max-loss 1: the result may be wrong"),
            ),
            (1.0, Ok(None), Some("50.0 % of the samples were lost, more than --max-loss 1: the result may be wrong")),
            (50.0, Ok(Some(0)), None),
            (50.0, Err(Failure::NoResult(anyhow!("wait"))), Some("wait")),
        ] {
            let mut ends = Ends::default();
            ends.loss(&MaxLossArgs { max_loss }, &lost);
            ends.command(status);
            assert_eq!(ends.end().err().map(|failure| failure.sentence()).as_deref(), expected);
        }
    }
}
