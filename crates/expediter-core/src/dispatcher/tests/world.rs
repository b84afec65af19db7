//! A small world in virtual time: replicas that follow a script, a beat of probes and reports, and a log.

use std::collections::BTreeMap;
use std::time::Duration;

use expediter_types::{EngineReport, Prng, ReplicaId, RequestId, Time};

use super::pool::MODEL;
use crate::{Dispatcher, Failure, Output, ProbeFailure, ProbeResult, Request, Settings};

/// What a replica does with a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Answer {
    /// First output and end, after the request came.
    Good {
        first: Duration,
        end: Duration,
    },
    Fails {
        after: Duration,
        failure: Failure,
    },
    Hangs,
}

/// The script of one replica. Each entry is a function of the time.
pub(super) struct Script {
    pub(super) answer: Box<dyn Fn(Time) -> Answer>,
    /// `None` for a replica that is healthy and lists the model.
    pub(super) health: Box<dyn Fn(Time) -> Option<ProbeFailure>>,
    /// `None` for metrics that hang.
    pub(super) report: Box<dyn Fn(Time) -> Option<EngineReport>>,
}

impl Script {
    /// A replica that answers well after `first` and `end`, and has no metrics.
    pub(super) fn good(first: u64, end: u64) -> Self {
        let answer = Answer::Good { first: Duration::from_millis(first), end: Duration::from_millis(end) };
        Self { answer: Box::new(move |_| answer), health: Box::new(|_| None), report: Box::new(|_| None) }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Finished,
    Refused,
    Expired,
}

#[derive(Debug)]
enum Event {
    Arrive(Request),
    First(RequestId, u32),
    End(RequestId, u32),
    Fail(RequestId, u32, Failure),
    Probe(usize),
    Report(usize),
    WarmedUp(usize, bool),
}

pub(super) struct World {
    pub(super) dispatcher: Dispatcher,
    pub(super) now: Time,
    scripts: Vec<Script>,
    events: BTreeMap<(Time, u64), Event>,
    count: u64,
    /// The attempt that each request is at.
    attempts: BTreeMap<RequestId, u32>,
    pub(super) dispatched: Vec<(Time, ReplicaId)>,
    pub(super) trials: Vec<(Time, ReplicaId)>,
    pub(super) ends: BTreeMap<RequestId, End>,
    pub(super) arrived: u64,
}

impl World {
    pub(super) fn new(settings: Settings, scripts: Vec<Script>) -> Self {
        let mut world = Self {
            dispatcher: Dispatcher::new(settings, Prng::new(1)),
            now: Time::ZERO,
            events: BTreeMap::new(),
            count: 0,
            attempts: BTreeMap::new(),
            dispatched: Vec::new(),
            trials: Vec::new(),
            ends: BTreeMap::new(),
            arrived: 0,
            scripts,
        };
        for index in 0..world.scripts.len() {
            world.dispatcher.join(ReplicaId(index as u32), Time::ZERO);
            world.at(Time::ZERO, Event::Probe(index));
            world.at(Time::ZERO, Event::Report(index));
        }
        world
    }

    fn at(&mut self, at: Time, event: Event) {
        self.count += 1;
        self.events.insert((at, self.count), event);
    }

    /// Sends `requests`, the first at `from` and each `gap` after the one before, all times in ms.
    pub(super) fn send(&mut self, from: u64, gap: f64, requests: impl IntoIterator<Item = Request>) {
        for (index, request) in requests.into_iter().enumerate() {
            let offset = Duration::from_secs_f64(gap / 1e3).mul_f64(index as f64);
            self.at(Time::from_millis(from) + offset, Event::Arrive(request));
        }
    }

    /// Runs until `end` (ms).
    pub(super) fn run(&mut self, end: u64) {
        let end = Time::from_millis(end);
        loop {
            let event = self.events.first_key_value().map_or(Time(u64::MAX), |((at, _), _)| *at);
            let timeout = self.dispatcher.poll_timeout().map_or(Time(u64::MAX), |(at, _)| at);
            if event.min(timeout) > end {
                self.now = end;
                return;
            }
            if timeout <= event {
                self.now = self.now.max(timeout);
                self.dispatcher.handle_timeout(self.now);
            } else if let Some(((at, _), event)) = self.events.pop_first() {
                self.now = at;
                self.happen(event);
            }
            self.drain();
        }
    }

    fn happen(&mut self, event: Event) {
        let (now, is_current) =
            (self.now, |world: &Self, id, attempt| world.attempts.get(&id) == Some(&attempt));
        match event {
            Event::Arrive(request) => {
                self.arrived += 1;
                self.dispatcher.arrive(RequestId(self.arrived), request, now);
            }
            Event::First(id, attempt) if is_current(self, id, attempt) => {
                self.dispatcher.first_output(id, now);
            }
            Event::End(id, attempt) if is_current(self, id, attempt) => {
                self.dispatcher.finish(id, now);
                self.end(id, End::Finished);
            }
            Event::Fail(id, attempt, failure) if is_current(self, id, attempt) => {
                self.dispatcher.fail(id, failure, now);
            }
            Event::First(..) | Event::End(..) | Event::Fail(..) => {}
            Event::Probe(index) => {
                let result = match (self.scripts[index].health)(now) {
                    None => ProbeResult::Healthy { models: vec![MODEL] },
                    Some(failure) => ProbeResult::Unhealthy(failure),
                };
                self.dispatcher.probe(ReplicaId(index as u32), result, now);
                self.at(now + Duration::from_secs(1), Event::Probe(index));
            }
            Event::Report(index) => {
                if let Some(report) = (self.scripts[index].report)(now) {
                    self.dispatcher.report(ReplicaId(index as u32), &report, now);
                }
                self.at(now + Duration::from_millis(200), Event::Report(index));
            }
            Event::WarmedUp(index, answered) => {
                self.dispatcher.probe(ReplicaId(index as u32), ProbeResult::WarmUp(answered), now);
            }
        }
    }

    fn end(&mut self, id: RequestId, end: End) {
        self.attempts.remove(&id);
        let before = self.ends.insert(id, end);
        assert_eq!(before, None, "{id} ended twice");
    }

    fn drain(&mut self) {
        while let Some(output) = self.dispatcher.poll_output() {
            let now = self.now;
            match output {
                Output::Dispatch { id, replica, .. } => {
                    let attempt = self.attempts.get(&id).map_or(1, |attempt| attempt + 1);
                    self.attempts.insert(id, attempt);
                    self.dispatched.push((now, replica));
                    match (self.scripts[replica.0 as usize].answer)(now) {
                        Answer::Good { first, end } => {
                            self.at(now + first, Event::First(id, attempt));
                            self.at(now + end, Event::End(id, attempt));
                        }
                        Answer::Fails { after, failure } => {
                            self.at(now + after, Event::Fail(id, attempt, failure));
                        }
                        Answer::Hangs => {}
                    }
                }
                Output::Refuse { id, .. } => self.end(id, End::Refused),
                Output::Expire { id } => self.end(id, End::Expired),
                Output::Abandon { id, .. } | Output::Cut { id, .. } => {
                    self.dispatcher.fail(id, Failure::Silent, now);
                }
                Output::WarmUp { replica } => {
                    self.trials.push((now, replica));
                    let index = replica.0 as usize;
                    match (self.scripts[index].answer)(now) {
                        Answer::Good { end, .. } => self.at(now + end, Event::WarmedUp(index, true)),
                        Answer::Fails { after, .. } => self.at(now + after, Event::WarmedUp(index, false)),
                        Answer::Hangs => {
                            self.at(now + Duration::from_secs(10), Event::WarmedUp(index, false));
                        }
                    }
                }
                Output::Drained { .. } => {}
            }
        }
    }

    /// Dispatches to a replica within `from..to` (ms).
    pub(super) fn dispatches(&self, replica: u32, from: u64, to: u64) -> usize {
        let window = Time::from_millis(from)..Time::from_millis(to);
        self.dispatched.iter().filter(|(at, to)| *to == ReplicaId(replica) && window.contains(at)).count()
    }

    /// The times of a replica's trials within `from..to` (ms).
    pub(super) fn trials(&self, replica: u32, from: u64, to: u64) -> Vec<Time> {
        let window = Time::from_millis(from)..Time::from_millis(to);
        let trials = self.trials.iter().filter(|(at, to)| *to == ReplicaId(replica) && window.contains(at));
        trials.map(|(at, _)| *at).collect()
    }

    /// Every request arrived and was answered in full, and nothing is left in flight.
    pub(super) fn assert_all_finished(&self) {
        assert_eq!(self.ends.len() as u64, self.arrived, "some requests have no end");
        let unfinished: Vec<_> = self.ends.iter().filter(|(_, end)| **end != End::Finished).collect();
        assert!(unfinished.is_empty(), "{unfinished:?}");
        for view in self.dispatcher.replicas(self.now) {
            assert_eq!((view.in_flight, view.in_flight_tokens.0), (0, 0), "{}", view.id);
        }
    }
}
