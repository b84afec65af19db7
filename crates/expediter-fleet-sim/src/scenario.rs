//! What is simulated: pools of replicas, gateways in front of them, and what goes wrong.

use std::collections::BTreeSet;
use std::time::Duration;

use expediter_core::{PolicyParameterError, Settings as DispatcherSettings};
use expediter_engine_sim::Settings as EngineSettings;
use expediter_types::{BlockSize, ModelId, Time, Tokens};

/// A fleet and what happens to it. The workload is apart: see [`Workload`](crate::Workload).
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The pools; a request goes to the one that serves its model.
    pub pools: Vec<Pool>,
    /// Gateways, each with a view and a dispatcher of its own for each pool. Requests come to them in turn.
    pub gateways: u32,
    /// Time in the gateway before a request is sent on, tokenising included.
    pub gateway_overhead: Duration,
    /// One way between gateway and replica.
    pub network_delay: Duration,
    /// Between two reports of one replica to one gateway.
    pub report_interval: Duration,
    /// Between two health checks of one replica by one gateway.
    pub probe_interval: Duration,
    /// What counts as goodput.
    pub slo: Slo,
    /// What goes wrong, in any order.
    pub faults: Vec<FaultAt>,
    /// Arrivals after this time are not sent.
    pub duration: Duration,
    /// Requests that arrive before this time are served but not measured.
    pub warm_up: Duration,
    /// How long after `duration` the run goes on for the requests that are still open.
    pub drain: Duration,
}

impl Scenario {
    /// A fleet of these pools behind one gateway, with nothing going wrong: 8 ms in the gateway, reports every
    /// 200 ms, health checks every second, 30 s of warm-up before 60 s of measuring.
    pub fn of(pools: Vec<Pool>) -> Self {
        Self {
            pools,
            gateways: 1,
            gateway_overhead: Duration::from_millis(8),
            network_delay: Duration::ZERO,
            report_interval: Duration::from_millis(200),
            probe_interval: Duration::from_secs(1),
            slo: Slo::default(),
            faults: Vec::new(),
            duration: Duration::from_secs(90),
            warm_up: Duration::from_secs(30),
            drain: Duration::from_secs(60),
        }
    }

    /// Says what could not be simulated.
    ///
    /// # Errors
    /// The first mistake, with the field and what to write there.
    pub fn check(&self) -> Result<(), ScenarioError> {
        let positive = |field, duration: Duration| {
            if duration.is_zero() { Err(ScenarioError::NoTime { field }) } else { Ok(()) }
        };
        positive("duration", self.duration)?;
        positive("report_interval", self.report_interval)?;
        positive("probe_interval", self.probe_interval)?;
        if self.warm_up >= self.duration {
            return Err(ScenarioError::AllWarmUp { warm_up: self.warm_up, duration: self.duration });
        }
        if self.pools.is_empty() {
            return Err(ScenarioError::NoPool);
        }
        if !(1..=GATEWAYS_MAX).contains(&self.gateways) {
            return Err(ScenarioError::Gateways(self.gateways));
        }
        self.check_pools()?;
        self.faults.iter().try_for_each(|fault| self.check_fault(fault))
    }

    fn check_pools(&self) -> Result<(), ScenarioError> {
        let mut models = BTreeSet::new();
        for (index, pool) in self.pools.iter().enumerate() {
            let name = || pool.name.clone();
            if pool.replicas == 0 {
                return Err(ScenarioError::NoReplica { pool: name() });
            }
            let replicas = self.replicas_ever(index, pool);
            if replicas > REPLICAS_MAX {
                return Err(ScenarioError::TooManyReplicas { pool: name(), replicas });
            }
            let block_size = pool.engine.block_size;
            if !block_size.0.get().is_multiple_of(BlockSize::DEFAULT.0.get()) {
                return Err(ScenarioError::BlockSize { pool: name(), block_size });
            }
            if pool.models.is_empty() {
                return Err(ScenarioError::NoModel { pool: name() });
            }
            pool.dispatcher
                .policy_parameters
                .check()
                .map_err(|error| ScenarioError::PolicyParameter { pool: name(), error })?;
            for model in &pool.models {
                if !models.insert(*model) {
                    return Err(ScenarioError::ModelTwice { pool: name(), model: *model });
                }
            }
        }
        self.check_blocks()
    }

    fn check_blocks(&self) -> Result<(), ScenarioError> {
        let replicas = self.pools.iter().enumerate().map(|(index, pool)| self.replicas_ever(index, pool));
        let blocks = replicas
            .zip(&self.pools)
            .map(|(count, pool)| u64::from(count).saturating_mul(pool.engine.blocks.0));
        let blocks = blocks.fold(0_u64, u64::saturating_add);
        if blocks > BLOCKS_MAX {
            return Err(ScenarioError::TooManyBlocks { blocks });
        }
        Ok(())
    }

    /// Replicas of a pool, those that join among them.
    fn replicas_ever(&self, index: usize, pool: &Pool) -> u32 {
        let joins = |fault: &&FaultAt| fault.pool == index && fault.fault == Fault::Join;
        let joined = self.faults.iter().filter(joins).count();
        u32::try_from(joined).unwrap_or(u32::MAX).saturating_add(pool.replicas)
    }

    fn check_fault(&self, fault: &FaultAt) -> Result<(), ScenarioError> {
        let Some(pool) = self.pools.get(fault.pool) else {
            return Err(ScenarioError::FaultPool { pool: fault.pool, pools: self.pools.len() });
        };
        let known = self.replicas_ever(fault.pool, pool);
        if fault.fault != Fault::Join && fault.replica >= known {
            return Err(ScenarioError::FaultReplica {
                pool: pool.name.clone(),
                replica: fault.replica,
                known,
            });
        }
        match fault.fault {
            Fault::Slow(factor) if !(factor.is_finite() && factor > 0.0) => Err(ScenarioError::Slow(factor)),
            Fault::Status(status) if !(400..600).contains(&status) => Err(ScenarioError::Status(status)),
            Fault::Heal
            | Fault::Refuse
            | Fault::Crash
            | Fault::Hang
            | Fault::Freeze
            | Fault::Slow(_)
            | Fault::Status(_)
            | Fault::StaleReports
            | Fault::Cut(_)
            | Fault::Join
            | Fault::Drain
            | Fault::Lose => Ok(()),
        }
    }
}

/// More than the largest fleets have; each gateway probes every replica.
const GATEWAYS_MAX: u32 = 64;

/// A bound on what a typing mistake may allocate.
const REPLICAS_MAX: u32 = 4_096;

/// Each takes about 60 bytes; the reference fleet has 1.4 million.
const BLOCKS_MAX: u64 = 20_000_000;

/// Why a scenario cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScenarioError {
    /// No pools.
    #[error("pools: there is none; name at least one pool of replicas")]
    NoPool,
    /// A pool of nothing.
    #[error("pool `{pool}`: replicas is 0; at least 1 is needed")]
    NoReplica {
        /// Its name.
        pool: String,
    },
    /// A pool beyond reason.
    #[error(
        "pool `{pool}`: {replicas} replicas, those that join included, are more than the {REPLICAS_MAX} that can be simulated"
    )]
    TooManyReplicas {
        /// Its name.
        pool: String,
        /// As asked.
        replicas: u32,
    },
    /// A pool that serves nothing.
    #[error("pool `{pool}`: models is empty; name the model that its replicas serve")]
    NoModel {
        /// Its name.
        pool: String,
    },
    /// Blocks that do not fit those in which workloads hash their prompts.
    #[error("pool `{pool}`: block_size {} is no multiple of 16, the blocks in which prompts are hashed", block_size.0)]
    BlockSize {
        /// Its name.
        pool: String,
        /// As asked.
        block_size: BlockSize,
    },
    /// More memory than anybody has.
    #[error(
        "pools: {blocks} KV blocks in all are more than the {BLOCKS_MAX} that can be simulated; lower blocks or replicas"
    )]
    TooManyBlocks {
        /// As asked, over all replicas.
        blocks: u64,
    },
    /// A parameter that its policy cannot take.
    #[error("pool `{pool}`: {error}")]
    PolicyParameter {
        /// Its name.
        pool: String,
        /// The parameter and its range.
        error: PolicyParameterError,
    },
    /// Two pools that serve the same: a request would not know where to go.
    #[error("pool `{pool}`: {model} is served by an earlier pool or named twice; a model has one pool")]
    ModelTwice {
        /// The later pool.
        pool: String,
        /// The model.
        model: ModelId,
    },
    /// A fleet that nobody can reach, or too many gateways.
    #[error("gateways: {0} is not 1 to {GATEWAYS_MAX}")]
    Gateways(u32),
    /// A time that must not be zero.
    #[error("{field}: must be longer than 0")]
    NoTime {
        /// Its name.
        field: &'static str,
    },
    /// Nothing would be measured.
    #[error("warm_up: {warm_up:?} leaves nothing of the duration of {duration:?} to measure; shorten it")]
    AllWarmUp {
        /// As asked.
        warm_up: Duration,
        /// As asked.
        duration: Duration,
    },
    /// A fault in no pool.
    #[error("faults: pool {pool} does not exist; there are {pools}, numbered from 0")]
    FaultPool {
        /// As asked.
        pool: usize,
        /// How many there are.
        pools: usize,
    },
    /// A fault of no replica.
    #[error(
        "faults: pool `{pool}` has no replica {replica}; with those that join it has {known}, numbered from 0"
    )]
    FaultReplica {
        /// The pool.
        pool: String,
        /// As asked.
        replica: u32,
        /// How many there are, with those that join.
        known: u32,
    },
    /// A factor that is none.
    #[error("faults: slow by a factor of {0}; it must be a positive number")]
    Slow(f64),
    /// A status that is no error.
    #[error("faults: status {0} is not 400 to 599")]
    Status(u16),
    /// A request for a model that no pool serves.
    #[error("workload: a request asks for {0}, which no pool serves; add it to a pool's models")]
    UnknownModel(ModelId),
}

/// Replicas that serve the same models alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool {
    /// Its name in the report.
    pub name: String,
    /// Replicas at the start.
    pub replicas: u32,
    /// What each of them is.
    pub engine: EngineSettings,
    /// The models that each of them lists: the base model first, then adapters.
    pub models: Vec<ModelId>,
    /// How requests are placed.
    pub dispatcher: DispatcherSettings,
}

/// The service level objective of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// The longest time to first token, as the client sees it.
    pub ttft: Duration,
    /// The longest mean time per output token.
    pub tpot: Duration,
    /// The time to first token is an objective for prompts up to this length only.
    pub prompt_max: Tokens,
    /// The share of requests within `ttft` that makes a rate sustainable.
    pub ttft_share: f64,
    /// The share of requests within `tpot` that makes a rate sustainable.
    pub tpot_share: f64,
}

impl Default for Slo {
    /// TTFT p99 within 400 ms for prompts up to 4,000 tokens, TPOT p95 within 50 ms.
    fn default() -> Self {
        Self {
            ttft: Duration::from_millis(400),
            tpot: Duration::from_millis(50),
            prompt_max: Tokens(4_000),
            ttft_share: 0.99,
            tpot_share: 0.95,
        }
    }
}

/// A fault of one replica, from a moment on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FaultAt {
    /// When.
    pub at: Time,
    /// The pool, by its place in the scenario.
    pub pool: usize,
    /// The replica, by its number within the pool, from 0; one that joins takes the next number.
    pub replica: u32,
    /// What happens.
    pub fault: Fault,
}

/// What can go wrong with a replica, or right again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// All well again. A crashed engine comes back with an empty cache.
    Heal,
    /// New connections are refused; what is in flight goes on.
    Refuse,
    /// Connections are cut and refused; the engine and its cache are lost.
    Crash,
    /// Nothing is answered, health checks neither.
    Hang,
    /// No step ends, while health checks and reports (of the past) go on.
    Freeze,
    /// Every step takes this many times as long.
    Slow(f64),
    /// Generation is answered with this status.
    Status(u16),
    /// Reports show the past.
    StaleReports,
    /// The first output token is followed by a reset after so many tokens.
    Cut(u64),
    /// A new replica joins the pool. The replica's number is not used.
    Join,
    /// The replica is drained, then removed.
    Drain,
    /// The replica is removed at once and its engine lost.
    Lose,
}
