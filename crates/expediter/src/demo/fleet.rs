//! Three pools of simulated replicas, and the settings of a gateway in front of them.

use anyhow::Result;
use expediter_engine_server::{EngineServer, Settings};
use expediter_engine_sim::{Profile, Settings as EngineSettings};
use expediter_types::Blocks;

/// The replicas. They run in tasks of the runtime that started them.
pub(crate) struct Fleet {
    pools: Vec<(&'static Pool, EngineServer)>,
}

struct Pool {
    model: &'static str,
    replicas: u16,
    profile: Profile,
}

const POOLS: [Pool; 3] = [
    Pool { model: "m-8b", replicas: 4, profile: Profile::Llama3_8bTp1A100 },
    Pool { model: "m-32b", replicas: 2, profile: Profile::Qwen3_32bTp2H100 },
    Pool { model: "m-70b", replicas: 2, profile: Profile::Llama3_70bTp4A100 },
];

/// What each alias stands for, in words.
pub(crate) const ALIASES: &str = "gpt-fast is m-8b, gpt-smart is m-70b or, one time in four, m-32b";

/// Far fewer than fit on the cards, so that the modest traffic of a demo moves the KV column.
const BLOCKS: Blocks = Blocks(1_024);

/// Mean length of an answer whose request sets no cap: a few seconds to read in a terminal.
const ANSWER_TOKENS_MEAN: u32 = 150;

impl Fleet {
    /// Starts every replica on a port of the system's choice.
    pub(crate) async fn start(seed: u64) -> Result<Self> {
        let mut pools = Vec::new();
        for (pool, seed) in POOLS.iter().zip(seed..) {
            let settings = Settings {
                model: pool.model.to_owned(),
                replicas: pool.replicas,
                engine: EngineSettings { blocks: BLOCKS, ..EngineSettings::of(pool.profile) },
                answer_tokens_mean: Some(ANSWER_TOKENS_MEAN),
                seed,
                ..Settings::default()
            };
            pools.push((pool, EngineServer::start(settings).await?));
        }
        Ok(Self { pools })
    }

    /// `PATH=VALUE` for each setting of the gateway in which the demo differs from `serve`.
    pub(crate) fn settings(&self) -> Vec<String> {
        let mut sets = vec![
            "aliases.gpt-fast=m-8b".to_owned(),
            "aliases.gpt-smart=[{to: m-70b, weight: 3}, {to: m-32b, weight: 1}]".to_owned(),
            "log.level=warn".to_owned(),
            // One thread serves the traffic of the demo with ease; the other is for whoever tries harder.
            "shards=2".to_owned(),
            // Who ends a demo does not want to wait for the last answer.
            "limits.stop_ms=1000".to_owned(),
        ];
        for (pool, server) in &self.pools {
            let urls: Vec<String> =
                server.addresses().iter().map(|address| format!("http://{address}")).collect();
            sets.push(format!("pools.{}.replicas=[{}]", pool.model, urls.join(", ")));
        }
        sets
    }

    /// Stops every replica at once.
    pub(crate) async fn stop(self) {
        for (_, server) in self.pools {
            server.shutdown().await;
        }
    }
}
