//! A thread for what may take long, a dead mount among it, so that the keys and the picture never wait for it.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{channel, Receiver, RecvTimeoutError, Sender};
use std::thread::Builder;
use std::time::Duration;

use anyhow::{anyhow, Result};

use super::state::Asked;

/// Jobs that wait or are under way.
const MAX_JOBS: usize = 4;

/// What is to be done.
type Job = Box<dyn FnOnce() -> Answer + Send>;

/// The result of a job.
#[derive(Debug)]
pub(super) enum Answer {
    /// What is said of it.
    Said(Result<String>),
    /// The file that was to be written exists.
    Exists(Asked, PathBuf),
    /// The scheduling events were to be switched on or off; why that was refused.
    Switched(bool, Option<String>),
}

/// The thread. It takes one job after the other, and nothing waits for it: a job that never ends ends with the process.
#[derive(Debug)]
pub(super) struct Worker {
    jobs: Sender<Job>,
    answers: Receiver<Answer>,
    /// The descriptions of the jobs without an answer yet, in order.
    under_way: VecDeque<String>,
}

impl Worker {
    /// Starts the thread.
    ///
    /// # Errors
    /// Those of a thread that cannot be started.
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, given) = channel::<Job>();
        let (tell, answers) = channel();
        let work = move || {
            for job in given {
                if tell.send(job()).is_err() {
                    return;
                }
            }
        };
        drop(Builder::new().name("worker".to_owned()).spawn(work)?);
        Ok(Self { jobs, answers, under_way: VecDeque::new() })
    }

    /// Gives it a job, and says what that does.
    ///
    /// # Errors
    /// It has too many, or it died.
    pub(super) fn give(&mut self, does: String, job: impl FnOnce() -> Answer + Send + 'static) -> Result<()> {
        if let Some(first) = self.under_way.front().filter(|_| self.under_way.len() >= MAX_JOBS) {
            return Err(anyhow!("not yet: {first}"));
        }
        self.jobs.send(Box::new(job)).map_err(|_| anyhow!("a part of scxprof died (a bug)"))?;
        self.under_way.push_back(does);
        Ok(())
    }

    /// What it does now.
    pub(super) fn under_way(&self) -> Option<&str> {
        self.under_way.front().map(String::as_str)
    }

    /// All that it has to do yet, in order.
    pub(super) fn left(&self) -> impl Iterator<Item = &str> {
        self.under_way.iter().map(String::as_str)
    }

    /// The next answer, which is waited for so long; `None` if there is none.
    pub(super) fn answer(&mut self, limit: Duration) -> Option<Answer> {
        if self.under_way.is_empty() {
            return None;
        }
        match self.answers.recv_timeout(limit) {
            Ok(answer) => {
                self.under_way.pop_front();
                Some(answer)
            }
            Err(RecvTimeoutError::Timeout) => None,
            // What it panicked with was printed.
            Err(RecvTimeoutError::Disconnected) => {
                self.under_way.clear();
                Some(Answer::Said(Err(anyhow!("a part of scxprof died (a bug)"))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(180);

    fn said(answer: Option<Answer>) -> String {
        match answer {
            Some(Answer::Said(said)) => said.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn jobs_are_done_in_order_and_one_that_hangs_holds_up_only_those_after_it() {
        let mut worker = Worker::start().unwrap();
        let (go, gone) = mpsc::channel::<()>();
        worker
            .give("the first".to_owned(), move || {
                let _ = gone.recv();
                Answer::Said(Ok("1".to_owned()))
            })
            .unwrap();
        for at in 2..=MAX_JOBS {
            worker.give(format!("number {at}"), move || Answer::Said(Ok(at.to_string()))).unwrap();
        }
        assert!(worker.answer(Duration::ZERO).is_none());
        assert_eq!(worker.under_way(), Some("the first"));
        let refused = worker.give("one too many".to_owned(), || Answer::Said(Ok(String::new()))).unwrap_err();
        assert_eq!(refused.to_string(), "not yet: the first");
        go.send(()).unwrap();
        for at in 1..=MAX_JOBS {
            assert_eq!(said(worker.answer(LONG)), at.to_string());
        }
        assert!(worker.under_way().is_none() && worker.answer(LONG).is_none());
    }
}
