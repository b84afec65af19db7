//! `/metrics` under the names of vLLM 0.32.0.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use expediter_engine_sim::{FinishReason, Progress, Stats, Step};
use expediter_types::{Time, Tokens};

use crate::settings::Settings;

/// What a replica has counted. Times are the engine's.
#[derive(Clone, Debug)]
pub(crate) struct Telemetry {
    pub(crate) stats: Stats,
    /// Unix seconds.
    pub(crate) started: f64,
    /// The level at which the engine sleeps.
    pub(crate) sleep: Option<u8>,
    /// Sets of adapters that had requests in the batch, each with the Unix time at which it last was the set.
    adapters: BTreeMap<String, f64>,
    stopped: u64,
    cut_short: u64,
    aborted: u64,
    failed: u64,
    cached_tokens: Tokens,
    first_token: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    whole: Histogram,
    queue: Histogram,
    inference: Histogram,
    prefill: Histogram,
    decode: Histogram,
    iteration_tokens: Histogram,
    prompt_tokens: Histogram,
    generation_tokens: Histogram,
    preemptions: Histogram,
}

impl Telemetry {
    /// Of an engine that starts now.
    pub(crate) fn new(started: f64) -> Self {
        Self {
            stats: Stats::default(),
            started,
            sleep: None,
            adapters: BTreeMap::new(),
            stopped: 0,
            cut_short: 0,
            aborted: 0,
            failed: 0,
            cached_tokens: Tokens::ZERO,
            first_token: Histogram::new(FIRST_TOKEN),
            inter_token: Histogram::new(INTER_TOKEN),
            per_output_token: Histogram::new(INTER_TOKEN),
            whole: Histogram::new(REQUEST),
            queue: Histogram::new(REQUEST),
            inference: Histogram::new(REQUEST),
            prefill: Histogram::new(REQUEST),
            decode: Histogram::new(REQUEST),
            iteration_tokens: Histogram::new(ITERATION),
            prompt_tokens: Histogram::new(LENGTH),
            generation_tokens: Histogram::new(LENGTH),
            preemptions: Histogram::new(PREEMPTIONS),
        }
    }

    pub(crate) fn count_step(&mut self, step: &Step) {
        self.iteration_tokens.observe(step.batch.tokens().0 as f64);
    }

    /// Counts a token; `last` is when the request's token before it came.
    pub(crate) fn count_token(&mut self, progress: &Progress, last: Time, now: Time) {
        if progress.produced == Tokens(1) {
            self.first_token.observe(now.since(progress.life.arrived).as_secs_f64());
            self.cached_tokens += progress.life.cached;
        } else {
            self.inter_token.observe(now.since(last).as_secs_f64());
        }
    }

    /// Counts the end of a request. One whose client left is not counted, as in the real engine.
    pub(crate) fn count_end(&mut self, progress: &Progress, reason: FinishReason, now: Time) {
        match reason {
            FinishReason::Stop => self.stopped += 1,
            FinishReason::Length => self.cut_short += 1,
            FinishReason::Abort => self.aborted += 1,
        }
        let (life, produced) = (&progress.life, progress.produced.0);
        if produced == 0 {
            return;
        }
        let seconds = |from: Time, to: Time| to.since(from).as_secs_f64();
        let decode = seconds(life.first_token, now);
        self.whole.observe(seconds(life.arrived, now));
        self.queue.observe(seconds(life.arrived, life.admitted));
        self.inference.observe(seconds(life.admitted, now));
        self.prefill.observe(seconds(life.admitted, life.first_token));
        self.decode.observe(decode);
        self.per_output_token.observe(if produced > 1 { decode / (produced - 1) as f64 } else { 0.0 });
        self.prompt_tokens.observe(life.prompt.0 as f64);
        self.generation_tokens.observe(produced as f64);
        self.preemptions.observe(f64::from(life.preemptions));
    }

    /// The adapters with requests in the batch after a step, apart by commas.
    pub(crate) fn note_adapters(&mut self, names: String, now: f64) {
        self.adapters.insert(names, now);
    }

    /// Counts a request that the engine lost.
    pub(crate) fn count_failure(&mut self) {
        self.failed += 1;
    }

    /// The text of `/metrics`.
    pub(crate) fn render(&self, settings: &Settings) -> String {
        let text = String::with_capacity(PAGE_BYTES);
        let mut page = Page { text, model: &settings.model, started: self.started };
        let help = "Start time of the process since unix epoch in seconds.";
        page.bare("process_start_time_seconds", help, self.started);
        self.render_gauges(&mut page);
        self.render_counters(&mut page);
        self.render_histograms(&mut page);
        page.rejections(&self.stats);
        if let Some(lora) = &settings.engine.lora {
            page.adapters(&self.adapters, lora.max_loras);
        }
        page.cache_config(settings);
        page.text
    }

    fn render_gauges(&self, page: &mut Page<'_>) {
        let (running, waiting) = (self.stats.running as f64, self.stats.waiting as f64);
        let deferred = self.stats.deferred as f64;
        let reasons = [(r#"reason="capacity""#, waiting - deferred), (r#"reason="deferred""#, deferred)];
        let at_level = |level: Option<u8>| f64::from(u8::from(self.sleep == level));
        let sleep = [
            (r#"sleep_state="awake""#, at_level(None)),
            (r#"sleep_state="weights_offloaded""#, at_level(Some(1))),
            (r#"sleep_state="discard_all""#, at_level(Some(2))),
        ];
        page.gauge(
            "num_requests_running",
            "Number of requests in model execution batches.",
            &[("", running)],
        );
        page.gauge("num_requests_waiting", "Number of requests waiting to be processed.", &[("", waiting)]);
        page.gauge("num_requests_waiting_by_reason", "Number of waiting requests by reason.", &reasons);
        page.gauge("engine_sleep_state", "Engine sleep state.", &sleep);
        let usage = [("", self.stats.kv_usage())];
        page.gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", &usage);
    }

    fn render_counters(&self, page: &mut Page<'_>) {
        let (stats, cached) = (&self.stats, self.cached_tokens.0 as f64);
        let prompt = stats.prompt_tokens.0 as f64;
        let (queries, hits) = (stats.prefix_queries.0 as f64, stats.prefix_hits.0 as f64);
        let sources = [
            (r#"source="local_compute""#, prompt - cached),
            (r#"source="local_cache_hit""#, cached),
            (r#"source="external_kv_transfer""#, 0.0),
        ];
        let reasons = [
            (r#"finished_reason="stop""#, self.stopped as f64),
            (r#"finished_reason="length""#, self.cut_short as f64),
            (r#"finished_reason="abort""#, self.aborted as f64),
            (r#"finished_reason="error""#, self.failed as f64),
            (r#"finished_reason="repetition""#, 0.0),
        ];
        let counters: [(&str, &str, &[Sample]); 8] = [
            (
                "prefix_cache_queries",
                "Prefix cache queries, in terms of number of queried tokens.",
                &[("", queries)],
            ),
            ("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", &[("", hits)]),
            (
                "num_preemptions",
                "Cumulative number of preemption from the engine.",
                &[("", stats.preemptions as f64)],
            ),
            ("prompt_tokens", "Number of prefill tokens processed.", &[("", prompt)]),
            ("prompt_tokens_by_source", "Number of prompt tokens by source.", &sources),
            ("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", &[("", cached)]),
            (
                "generation_tokens",
                "Number of generation tokens processed.",
                &[("", stats.generation_tokens.0 as f64)],
            ),
            ("request_success", "Count of successfully processed requests.", &reasons),
        ];
        for (name, help, samples) in counters {
            page.counter(name, help, samples);
        }
    }

    fn render_histograms(&self, page: &mut Page<'_>) {
        let histograms = [
            ("request_prompt_tokens", "Number of prefill tokens processed.", &self.prompt_tokens),
            ("request_generation_tokens", "Number of generation tokens processed.", &self.generation_tokens),
            (
                "iteration_tokens_total",
                "Histogram of number of tokens per engine_step.",
                &self.iteration_tokens,
            ),
            (
                "time_to_first_token_seconds",
                "Histogram of time to first token in seconds.",
                &self.first_token,
            ),
            (
                "inter_token_latency_seconds",
                "Histogram of inter-token latency in seconds.",
                &self.inter_token,
            ),
            (
                "request_time_per_output_token_seconds",
                "Histogram of time_per_output_token_seconds per request.",
                &self.per_output_token,
            ),
            ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &self.whole),
            (
                "request_queue_time_seconds",
                "Histogram of time spent in WAITING phase for request.",
                &self.queue,
            ),
            (
                "request_inference_time_seconds",
                "Histogram of time spent in RUNNING phase for request.",
                &self.inference,
            ),
            (
                "request_prefill_time_seconds",
                "Histogram of time spent in PREFILL phase for request.",
                &self.prefill,
            ),
            (
                "request_decode_time_seconds",
                "Histogram of time spent in DECODE phase for request.",
                &self.decode,
            ),
            (
                "request_num_preemptions",
                "Histogram of the number of preemptions per request.",
                &self.preemptions,
            ),
        ];
        for (name, help, histogram) in histograms {
            page.histogram(name, help, histogram);
        }
    }
}

/// The text under way. Every series of the engine carries its labels.
struct Page<'a> {
    text: String,
    model: &'a str,
    started: f64,
}

impl Page<'_> {
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes all that is written to it");
    }

    /// A series of the process.
    fn bare(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, help, "gauge");
        self.line(format_args!("{name} {value:?}"));
    }

    /// Labels in alphabetical order, as the Python client has them: `more` is one that comes after `engine`.
    fn sample(&mut self, name: &str, more: &str, value: f64) {
        let model = self.model;
        match more {
            "" => self.line(format_args!(r#"{name}{{engine="0",model_name="{model}"}} {value:?}"#)),
            more if more < "model_name" => {
                self.line(format_args!(r#"{name}{{engine="0",{more},model_name="{model}"}} {value:?}"#));
            }
            more => self.line(format_args!(r#"{name}{{engine="0",model_name="{model}",{more}}} {value:?}"#)),
        }
    }

    fn gauge(&mut self, name: &str, help: &str, samples: &[Sample<'_>]) {
        let name = format!("vllm:{name}");
        self.head(&name, help, "gauge");
        for (more, value) in samples {
            self.sample(&name, more, *value);
        }
    }

    /// A counter is followed by a gauge that says since when it counts.
    fn counter(&mut self, name: &str, help: &str, samples: &[Sample<'_>]) {
        let (total, created) = (format!("vllm:{name}_total"), format!("vllm:{name}_created"));
        self.head(&total, help, "counter");
        for (more, value) in samples {
            self.sample(&total, more, *value);
        }
        self.head(&created, help, "gauge");
        let started = self.started;
        for (more, _) in samples {
            self.sample(&created, more, started);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let name = format!("vllm:{name}");
        self.head(&name, help, "histogram");
        let mut sum = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            sum += count;
            self.sample(&format!("{name}_bucket"), &format!(r#"le="{bound:?}""#), sum as f64);
        }
        self.sample(&format!("{name}_bucket"), r#"le="+Inf""#, histogram.count as f64);
        self.sample(&format!("{name}_count"), "", histogram.count as f64);
        self.sample(&format!("{name}_sum"), "", histogram.sum);
        let (created, started) = (format!("{name}_created"), self.started);
        self.head(&created, help, "gauge");
        self.sample(&created, "", started);
    }

    /// Counted before the engine, and so without its number.
    fn rejections(&mut self, stats: &Stats) {
        let (model, started) = (self.model, self.started);
        let help = "Number of admission attempts rejected by a queue limit, by reason.";
        let counts = [
            ("max_num_queued_reqs", stats.refused_by_requests as f64),
            ("max_num_queued_tokens", stats.refused_by_tokens as f64),
        ];
        for (name, kind) in
            [("vllm:admission_rejections_total", "counter"), ("vllm:admission_rejections_created", "gauge")]
        {
            self.head(name, help, kind);
            for (reason, count) in counts {
                let value = if kind == "counter" { count } else { started };
                self.line(format_args!(r#"{name}{{model_name="{model}",reason="{reason}"}} {value:?}"#));
            }
        }
    }

    /// Every set of adapters there ever was; the one with the latest time is that of now. Those that wait are not
    /// told: the real engine repeats those that run.
    fn adapters(&mut self, sets: &BTreeMap<String, f64>, max_loras: u32) {
        let name = "vllm:lora_requests_info";
        self.head(name, "Running stats on lora requests.", "gauge");
        for (running, time) in sets {
            self.line(format_args!(
                r#"{name}{{max_lora="{max_loras}",running_lora_adapters="{running}",waiting_lora_adapters="{running}"}} {time:?}"#
            ));
        }
    }

    /// A series whose labels are the news; values are text.
    fn cache_config(&mut self, settings: &Settings) {
        let name = "vllm:cache_config_info";
        self.head(name, "Information of the LLMEngine CacheConfig", "gauge");
        let engine = &settings.engine;
        let (block_size, blocks, tokens) = (engine.block_size.0, engine.blocks.0, engine.capacity().0);
        let caching = if engine.enable_prefix_caching { "True" } else { "False" };
        self.line(format_args!(
            r#"{name}{{block_size="{block_size}",cache_dtype="auto",enable_prefix_caching="{caching}",engine="0",gpu_memory_utilization="0.9",kv_cache_size_tokens="{tokens}",num_cpu_blocks="None",num_gpu_blocks="{blocks}",num_gpu_blocks_override="None",prefix_caching_hash_algo="sha256",sliding_window="None"}} 1.0"#
        ));
    }
}

/// A label beside those that all have, or none, and the value.
type Sample<'a> = (&'a str, f64);

/// Counts by bucket.
#[derive(Clone, Debug)]
struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        if let Some(bucket) = self.bounds.iter().position(|bound| value <= *bound) {
            self.counts[bucket] += 1;
        }
    }
}

/// A page is 25 kB long.
const PAGE_BYTES: usize = 32 << 10;

// The buckets of vLLM 0.32.0 (`vllm/v1/metrics/loggers.py`), as captured.
#[rustfmt::skip]
const FIRST_TOKEN: &[f64] = &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0];
#[rustfmt::skip]
const INTER_TOKEN: &[f64] = &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
#[rustfmt::skip]
const REQUEST: &[f64] = &[0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0];
#[rustfmt::skip]
const ITERATION: &[f64] = &[1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
#[rustfmt::skip]
const LENGTH: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0];
const PREEMPTIONS: &[f64] = &[1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];
