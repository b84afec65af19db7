use expediter_types::{Prompt, Tokens};
use proptest::prelude::*;

use super::*;
use crate::request::FinishReason;

fn request(id: u64, adapter: Option<u32>, priority: i32) -> Request {
    Request {
        id: RequestId(id),
        prompt: Prompt::opaque(Tokens(1)),
        output: Tokens(1),
        ends_with: FinishReason::Length,
        adapter: adapter.map(ModelId),
        priority,
    }
}

#[derive(Clone, Debug)]
enum Act {
    Arrive {
        adapter: Option<u32>,
        priority: i32,
    },
    /// The head leaves; it may be put back later.
    Admit,
    PutBack,
    Remove(u64),
    /// All whose adapter is not 0 are passed over, up to the head of the others.
    PassOver,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (prop::option::of(0..3_u32), -1..2_i32).prop_map(|(adapter, priority)| Act::Arrive { adapter, priority }),
        2 => Just(Act::Admit),
        1 => Just(Act::PutBack),
        2 => (0..60_u64).prop_map(Act::Remove),
        2 => Just(Act::PassOver),
    ]
}

/// The queue as a list of who waits and whether it was passed over, in order.
#[derive(Default)]
struct Oracle(Vec<(Rank, u64, Option<ModelId>, bool)>);

fn is_admissible(adapter: Option<ModelId>) -> bool {
    adapter.is_none_or(|adapter| adapter == ModelId(0))
}

impl Oracle {
    fn insert(&mut self, sequence: &Sequence) {
        self.0.push((sequence.rank, sequence.request.id.0, sequence.request.adapter, false));
        self.0.sort_by_key(|(rank, ..)| *rank);
    }

    fn pass_over(&mut self) {
        let head = self.0.iter().position(|(_, _, adapter, _)| is_admissible(*adapter));
        let end = head.unwrap_or(self.0.len());
        self.0[..end].iter_mut().for_each(|(_, _, _, passed)| *passed = true);
    }
}

fn play(acts: &[Act], scheduling: Scheduling) {
    let (mut queue, mut oracle, mut out) = (WaitQueue::new(scheduling), Oracle::default(), Vec::new());
    for (id, act) in (0..).zip(acts) {
        match *act {
            Act::Arrive { adapter, priority } => {
                queue.arrive(request(id, adapter, priority), Time(id));
                let arrived = queue.sequences().find(|one| one.request.id.0 == id).expect("it has just come");
                oracle.insert(arrived);
            }
            Act::Admit => {
                let head = queue.head(|_| true).map(|head| head.request.id);
                assert_eq!(head.map(|id| id.0), oracle.0.first().map(|(_, id, ..)| *id));
                out.extend(head.and_then(|id| queue.remove(id)));
                oracle.0.drain(..head.iter().len());
            }
            Act::PutBack => {
                let Some(sequence) = out.pop() else { continue };
                let id = sequence.request.id;
                queue.put_back(sequence);
                oracle.insert(queue.sequences().find(|one| one.request.id == id).expect("it is back"));
                if scheduling == Scheduling::Fcfs {
                    assert_eq!(queue.ids()[0], id, "at the head");
                }
            }
            Act::Remove(id) => {
                let known = oracle.0.iter().position(|(_, other, ..)| *other == id);
                assert_eq!(queue.remove(RequestId(id)).is_some(), known.is_some());
                oracle.0.drain(known.map_or(0..0, |place| place..place + 1));
            }
            Act::PassOver => {
                let end = queue.head(is_admissible).map(|head| head.rank);
                queue.pass_over(is_admissible, end);
                oracle.pass_over();
            }
        }
        let ids: Vec<u64> = queue.ids().iter().map(|id| id.0).collect();
        assert_eq!(ids, oracle.0.iter().map(|(_, id, ..)| *id).collect::<Vec<u64>>());
        assert_eq!(queue.len(), ids.len());
        assert_eq!(queue.deferred(), oracle.0.iter().filter(|(.., passed)| *passed).count());
    }
    let order = queue.ids();
    assert_eq!(queue.drain().map(|sequence| sequence.request.id).collect::<Vec<_>>(), order);
}

proptest! {
    #[test]
    fn the_queue_does_what_a_sorted_list_would(acts in prop::collection::vec(act(), 0..60), is_priority: bool) {
        play(&acts, if is_priority { Scheduling::Priority } else { Scheduling::Fcfs });
    }
}
