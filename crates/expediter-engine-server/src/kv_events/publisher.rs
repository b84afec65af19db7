//! Numbers batches, keeps the last of them, and hands each to whoever subscribed. Never waits: what a subscriber has
//! no room for is lost to it, as with ZeroMQ.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use expediter_wire::kv_events::{KvEventBatch, Published, Replay, ReplayReply, encode};
use expediter_wire::zmtp::write_message;
use tokio::sync::mpsc;

use crate::settings::KvEventsSettings;

/// What a replica publishes. Called by its driver, and by the connections of subscribers.
#[derive(Debug)]
pub(crate) struct Publisher {
    settings: KvEventsSettings,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the next batch.
    sequence: u64,
    buffer: VecDeque<(u64, Bytes)>,
    subscribers: Vec<Subscriber>,
    last_subscriber: u64,
    /// So many batches are numbered and kept, but not handed out.
    withheld: u64,
}

#[derive(Debug)]
struct Subscriber {
    id: u64,
    topics: Vec<Bytes>,
    queue: mpsc::Sender<Bytes>,
}

impl Publisher {
    pub(crate) fn new(settings: KvEventsSettings) -> Self {
        Self { settings, state: Mutex::default() }
    }

    pub(crate) fn publish(&self, batch: &KvEventBatch) {
        let payload = Bytes::from(encode(batch, self.settings.encoding));
        let mut state = self.state();
        let sequence = state.sequence;
        state.sequence += 1;
        state.buffer.push_back((sequence, payload.clone()));
        if state.buffer.len() > self.settings.buffer_steps {
            state.buffer.pop_front();
        }
        if state.withheld > 0 {
            state.withheld -= 1;
            return;
        }
        let topic = self.settings.topic.as_bytes();
        let mut message = Vec::new();
        write_message(&Published { topic, sequence, payload: &payload }.frames(), &mut message);
        let message = Bytes::from(message);
        let subscribed =
            |subscriber: &&Subscriber| subscriber.topics.iter().any(|wanted| topic.starts_with(wanted));
        for subscriber in state.subscribers.iter().filter(subscribed) {
            // Full, or gone: lost either way.
            _ = subscriber.queue.try_send(message.clone());
        }
    }

    /// As a process that starts: it has published nothing.
    pub(crate) fn restart(&self) {
        let mut state = self.state();
        // Connections of the earlier process may still say goodbye by their number.
        *state = State { last_subscriber: state.last_subscriber, ..State::default() };
    }

    /// The next batches are lost to subscribers; a replay has them.
    pub(crate) fn withhold(&self, batches: u64) {
        self.state().withheld = batches;
    }

    /// What answers a question, message by message.
    pub(crate) fn replay(&self, question: Replay) -> VecDeque<Bytes> {
        let state = self.state();
        let wanted = state.buffer.iter().filter(|(sequence, _)| *sequence >= question.from);
        let replies = wanted.map(|(sequence, payload)| ReplayReply::Batch { sequence: *sequence, payload });
        let message = |reply: ReplayReply<'_>| {
            let mut message = Vec::new();
            let frames = reply.frames(self.settings.replay_form, self.settings.topic.as_bytes());
            write_message(&frames, &mut message);
            Bytes::from(message)
        };
        replies.chain([ReplayReply::End]).map(message).collect()
    }

    /// A new subscriber, by its number, and what it is to be sent once it has subscribed.
    pub(crate) fn connect(&self) -> (u64, mpsc::Receiver<Bytes>) {
        let (queue, messages) = mpsc::channel(self.settings.hwm);
        let mut state = self.state();
        state.last_subscriber += 1;
        let id = state.last_subscriber;
        state.subscribers.push(Subscriber { id, topics: Vec::new(), queue });
        (id, messages)
    }

    pub(crate) fn disconnect(&self, id: u64) {
        self.state().subscribers.retain(|subscriber| subscriber.id != id);
    }

    pub(crate) fn subscribe(&self, id: u64, topic: Bytes) {
        if let Some(subscriber) = self.state().subscriber(id).filter(|found| found.topics.len() < TOPICS_MAX)
        {
            subscriber.topics.push(topic);
        }
    }

    /// Takes back one subscription to this topic.
    pub(crate) fn unsubscribe(&self, id: u64, topic: &[u8]) {
        let mut state = self.state();
        let Some(subscriber) = state.subscriber(id) else { return };
        if let Some(place) = subscriber.topics.iter().position(|known| known == topic) {
            subscriber.topics.swap_remove(place);
        }
    }

    /// Connections that have subscribed to something.
    pub(crate) fn subscribers(&self) -> usize {
        self.state().subscribers.iter().filter(|subscriber| !subscriber.topics.is_empty()).count()
    }

    /// Held for a moment, never across an `.await`.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn subscriber(&mut self, id: u64) -> Option<&mut Subscriber> {
        self.subscribers.iter_mut().find(|subscriber| subscriber.id == id)
    }
}

/// Subscriptions of one connection; more are not noted.
const TOPICS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use expediter_wire::kv_events::KvEvent;

    use super::*;

    fn publisher(hwm: usize) -> Publisher {
        Publisher::new(KvEventsSettings { topic: "kv@x".to_owned(), hwm, ..KvEventsSettings::default() })
    }

    fn publish(publisher: &Publisher, batches: usize) {
        let batch = KvEventBatch { events: vec![KvEvent::AllBlocksCleared], ..KvEventBatch::default() };
        for _ in 0..batches {
            publisher.publish(&batch);
        }
    }

    /// The last byte of each sequence: it follows the topic's frame and the head of its own.
    fn sequences(messages: &mut mpsc::Receiver<Bytes>) -> Vec<u8> {
        std::iter::from_fn(|| messages.try_recv().ok()).map(|message| message[6 + 2 + 7]).collect()
    }

    #[test]
    fn a_slow_subscriber_loses_what_it_has_no_room_for() {
        let publisher = publisher(2);
        let (slow, mut slow_messages) = publisher.connect();
        let (fast, mut fast_messages) = publisher.connect();
        publisher.subscribe(slow, Bytes::from_static(b"kv"));
        publisher.subscribe(fast, Bytes::new());
        let mut seen = Vec::new();
        for _ in 0..5 {
            publish(&publisher, 1);
            seen.extend(sequences(&mut fast_messages));
        }
        assert_eq!((sequences(&mut slow_messages), seen), (vec![0, 1], vec![0, 1, 2, 3, 4]));
        publish(&publisher, 1);
        assert_eq!(sequences(&mut slow_messages), [5], "and goes on with what is published then");
        assert_eq!(publisher.replay(Replay { from: 0 }).len(), 7, "six batches and the end");
    }

    #[test]
    fn only_who_subscribed_is_told() {
        let publisher = publisher(9);
        let (id, mut messages) = publisher.connect();
        publish(&publisher, 1);
        publisher.subscribe(id, Bytes::from_static(b"kv@y"));
        publish(&publisher, 1);
        assert_eq!((sequences(&mut messages), publisher.subscribers()), (vec![], 1));
        publisher.subscribe(id, Bytes::from_static(b"kv@x"));
        publish(&publisher, 1);
        publisher.unsubscribe(id, b"kv@x");
        publish(&publisher, 1);
        assert_eq!(sequences(&mut messages), [2]);
        publisher.disconnect(id);
        assert_eq!(publisher.subscribers(), 0);
    }
}
