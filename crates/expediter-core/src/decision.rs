//! The record of a decision: what there was to choose from, and why the losers lost.

use expediter_types::{ReplicaId, Tokens};

use crate::policy::Policy;
use crate::replica::ReplicaState;

/// Why a request went where it went.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The policy that chose.
    pub policy: Policy,
    /// The replica it chose.
    pub replica: ReplicaId,
    /// Which attempt of the request this is, from 1.
    pub attempt: u32,
    /// Prompt tokens that the chosen one is expected to have cached; zero where the policy does not ask.
    pub expected_cached: Tokens,
    /// Every replica of the pool, in order of id.
    pub candidates: Vec<Candidate>,
}

/// One replica in a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The replica.
    pub replica: ReplicaId,
    /// Its load in the unit of the policy: tokens, requests, seconds, or what a score lacks. Less is better.
    pub load: f64,
    /// Prompt tokens that it is expected to have cached; zero where the policy does not ask.
    pub cached: Tokens,
    /// The share of the prompt's full blocks that it is expected to hold, 0 to 1; zero where the policy does not
    /// ask.
    pub prefix_share: f64,
    /// Why it was chosen or was not.
    pub verdict: Verdict,
}

/// Why a replica was chosen or was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request went here.
    Chosen,
    /// It qualified, but had more load than the chosen one.
    HigherLoad,
    /// It qualified and did as well as the chosen one, which the rule for ties preferred.
    Tied,
    /// It qualified, but held less of the prompt than the chosen one, or than the policy asks for.
    LessPrefix,
    /// It qualified and stood before the chosen one on the ring, but had as many requests as it may have.
    OverBound,
    /// It qualified, but the draw, the rotation or the ring did not come to it.
    NotDrawn,
    /// It is in a state that takes no requests.
    NotReady(ReplicaState),
    /// It asked to be left alone for a while.
    PushedBack,
    /// An earlier attempt of this request was made here.
    Tried,
    /// It does not list the model.
    LacksModel,
}

impl Verdict {
    /// A stable name, for headers and records.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Chosen => "chosen",
            Self::HigherLoad => "higher_load",
            Self::Tied => "tied",
            Self::LessPrefix => "less_prefix",
            Self::OverBound => "over_bound",
            Self::NotDrawn => "not_drawn",
            Self::NotReady(state) => state.as_str(),
            Self::PushedBack => "pushed_back",
            Self::Tried => "tried",
            Self::LacksModel => "lacks_model",
        }
    }
}
