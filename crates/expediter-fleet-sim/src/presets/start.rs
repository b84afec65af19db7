//! How each preset makes its workload from numbers.

use std::sync::Arc;

use expediter_types::{Arrival, ModelId, Tokens};

use super::fleets::Models;
use super::values::{Parameter, Values, parameter};
use super::{Trace, Traces};
use crate::Workload;
use crate::workload::{
    Arrivals, Capacity, ChatThreads, Clients, CodeGeneration, Gaps, Groups, Lengths, Longer, Order, Pace,
    Range, Rate, Reasoning, Replay, Rival, RivalTenants, Tenant, TenantMix, WorkloadError,
};

type Started = Result<Box<dyn Workload>, WorkloadError>;

/// How an open loop's rate changes: not at all by default.
pub(super) const SHAPE: &[Parameter] = &[
    parameter(
        "ramp_to",
        0.0,
        "requests per second at the end of a ramp that begins at `rate`; 0 for no ramp",
    ),
    parameter("ramp_seconds", 60.0, "length of the ramp"),
    parameter("burst_factor", 1.0, "times `rate` during a burst; 1 for no bursts"),
    parameter("burst_seconds", 5.0, "length of a burst"),
    parameter("burst_period", 30.0, "seconds from one burst to the next"),
];

fn rate(values: &Values) -> Result<Rate, WorkloadError> {
    let (rate, ramp_to, factor) =
        (values.number("rate"), values.number("ramp_to"), values.number("burst_factor"));
    #[expect(clippy::float_cmp, reason = "the exact default means no ramp, or no bursts")]
    Ok(if ramp_to != 0.0 {
        Rate::Ramp { from: rate, to: ramp_to, over: values.seconds("ramp_seconds")? }
    } else if factor != 1.0 {
        let (length, period) = (values.seconds("burst_seconds")?, values.seconds("burst_period")?);
        Rate::Bursts { base: rate, factor, length, period }
    } else {
        Rate::Constant(rate)
    })
}

pub(super) const CV: &[Parameter] =
    &[parameter("cv", 1.0, "coefficient of variation of the gaps between requests; 1 is Poisson")];

fn arrivals(values: &Values) -> Result<Arrivals, WorkloadError> {
    let cv = values.number("cv");
    #[expect(clippy::float_cmp, reason = "the exact default means Poisson")]
    let gaps = if cv == 1.0 { Gaps::Poisson } else { Gaps::Gamma { cv } };
    Ok(Arrivals { rate: rate(values)?, gaps })
}

fn tokens(values: &Values, name: &'static str) -> Result<Tokens, WorkloadError> {
    values.whole(name).map(|tokens| Tokens(u64::from(tokens)))
}

/// By default all requests go to `m-8b`, the model that can meet the objectives: a step of a 70B in 16 bit on two A100
/// alone takes 48 ms, and without placement by adapter each of eight replicas loads all of sixty adapters. A share
/// of 0.135 would let the adapters' pool and `m-8b` reach their limits together: 46 of 342 requests per second where
/// 80 % hit.
pub(super) const REFERENCE: &[Parameter] = &[
    parameter("rate", 180.0, "requests per second"),
    parameter("adapter_share", 0.0, "share of the requests that ask for an adapter"),
    parameter("adapter_zipf", 1.0, "exponent of the adapters' popularity"),
    parameter("large_share", 0.0, "share of the requests that ask for the 70B"),
    parameter("prefix_tokens", 1_536.0, "tokens of a tenant's system prompt"),
];

pub(super) fn reference(values: &Values, models: &Models, traces: &dyn Traces, seed: u64) -> Started {
    let mix = TenantMix {
        rate: rate(values)?,
        tenants: tenants(values, models, traces)?,
        lengths: conversation_lengths(traces),
        prefix: tokens(values, "prefix_tokens")?,
    };
    Ok(Box::new(mix.start(seed)?))
}

/// `ServeGen`'s clients for each base model, and a tenant for each adapter. Adapters borrow the coefficients of
/// variation of the busiest clients.
fn tenants(values: &Values, models: &Models, traces: &dyn Traces) -> Result<Vec<Tenant>, WorkloadError> {
    let (adapters, large) = shares(values)?;
    let clients = traces.clients();
    let total: f64 = clients.iter().map(|client| client.rate).sum();
    let of_model = |model, share: f64| {
        clients.iter().map(move |client| Tenant { weight: client.rate / total * share, cv: client.cv, model })
    };
    let zipf = values.number("adapter_zipf");
    let popularity = |rank: usize| (rank as f64 + 1.0).powf(-zipf);
    let sum: f64 = (0..models.adapters.len()).map(popularity).sum();
    let of_adapter = |(rank, model): (usize, &ModelId)| {
        let cv = clients.get(rank % clients.len().max(1)).map_or(1.0, |client| client.cv);
        Tenant { weight: popularity(rank) / sum * adapters, cv, model: *model }
    };
    let adapters = if models.adapters.is_empty() { 0.0 } else { adapters };
    let large = if models.large.is_some() { large } else { 0.0 };
    let mut tenants: Vec<Tenant> = of_model(models.base, 1.0 - adapters - large).collect();
    tenants.extend(models.adapters.iter().enumerate().map(of_adapter));
    tenants.extend(models.large.into_iter().flat_map(|model| of_model(model, large)));
    tenants.retain(|tenant| tenant.weight != 0.0);
    Ok(tenants)
}

/// What adapters and the large model get of all requests.
fn shares(values: &Values) -> Result<(f64, f64), WorkloadError> {
    let (adapters, large) = (values.number("adapter_share"), values.number("large_share"));
    let shares = [
        ("adapter_share", adapters),
        ("large_share", large),
        ("adapter_share + large_share", adapters + large),
    ];
    let outside = shares.into_iter().find(|(_, value)| !(0.0..=1.0).contains(value));
    outside.map_or(Ok((adapters, large)), |(field, value)| {
        Err(WorkloadError::OutOfRange { field, value, remedy: "a share from 0 to 1" })
    })
}

fn conversation_lengths(traces: &dyn Traces) -> Lengths {
    let requests = traces.requests(Trace::AzureConversation);
    Lengths::conversation(requests.iter().map(|request| (request.prompt.tokens(), request.output)).collect())
}

pub(super) const CAPACITY: &[Parameter] = &[
    parameter("rate", 48.0, "requests per second"),
    parameter("prompt_tokens", 1_840.0, "tokens of a prompt"),
    parameter("output_tokens", 300.0, "tokens of an answer"),
];

pub(super) const PREFIXES: &[Parameter] = &[
    parameter(
        "hit",
        0.8,
        "share of the requests that begin with a system prompt, where they are long enough",
    ),
    parameter("prefix_tokens", 1_536.0, "tokens of a system prompt"),
    parameter("prefixes", 1.0, "different system prompts"),
];

pub(super) fn capacity(values: &Values, models: &Models, _: &dyn Traces, seed: u64) -> Started {
    let prompt = tokens(values, "prompt_tokens")?;
    let output = tokens(values, "output_tokens")?;
    with_prefixes(values, models, Lengths::Fixed { prompt, output }, seed)
}

pub(super) const CONVERSATION: &[Parameter] = &[parameter("rate", 32.0, "requests per second")];

pub(super) fn conversation(values: &Values, models: &Models, traces: &dyn Traces, seed: u64) -> Started {
    with_prefixes(values, models, conversation_lengths(traces), seed)
}

fn with_prefixes(values: &Values, models: &Models, lengths: Lengths, seed: u64) -> Started {
    let capacity = Capacity {
        arrivals: arrivals(values)?,
        lengths,
        hit: values.number("hit"),
        prefix: tokens(values, "prefix_tokens")?,
        prefixes: values.whole("prefixes")?,
        model: models.base,
    };
    Ok(Box::new(capacity.start(seed)?))
}

pub(super) const B2B: &[Parameter] = &[
    parameter("rate", 30.0, "requests per second"),
    parameter("stages", 0.0, "1 for the published rates one after the other: 15 for 50 s, then 3 to 60"),
    parameter("groups", 150.0, "customers, each with a system prompt"),
    parameter("prompts", 5.0, "users of a customer, each with one question"),
    parameter("prefix_tokens", 6_000.0, "tokens of a system prompt"),
    parameter("question_tokens", 1_200.0, "tokens of a question"),
    parameter("output_tokens", 245.0, "tokens of an answer"),
];

pub(super) fn b2b(values: &Values, models: &Models, _: &dyn Traces, seed: u64) -> Started {
    let mut arrivals = arrivals(values)?;
    if values.switch("stages")? {
        arrivals.rate = Groups::b2b_stages();
    }
    let groups = Groups { arrivals, ..Groups::b2b(Rate::Constant(1.0), models.base) };
    sized(groups, values, seed)
}

fn sized(groups: Groups, values: &Values, seed: u64) -> Started {
    Ok(Box::new(with_sizes(groups, values)?.start(seed)?))
}

fn with_sizes(groups: Groups, values: &Values) -> Result<Groups, WorkloadError> {
    let groups = Groups {
        groups: values.whole("groups")?,
        prompts: values.whole("prompts")?,
        prefix: tokens(values, "prefix_tokens")?,
        question: tokens(values, "question_tokens")?,
        output: tokens(values, "output_tokens")?,
        ..groups
    };
    let output_cap = groups.output_cap.max(groups.output);
    Ok(Groups { output_cap, ..groups })
}

pub(super) const LARGE_PREFIX: &[Parameter] = &[
    parameter("rate", 8.0, "requests per second"),
    parameter("stages", 0.0, "1 for the published rates one after the other: 9 for 30 s, then 3 to 20"),
    parameter("groups", 83.0, "groups of prompts that share a prefix"),
    parameter("prompts", 3.0, "prompts of a group"),
    parameter("prefix_tokens", 8_000.0, "tokens of a prefix"),
    parameter("question_tokens", 1_000.0, "tokens of a prompt after that"),
    parameter("output_tokens", 1_000.0, "tokens of an answer"),
];

pub(super) fn large_prefix(values: &Values, models: &Models, _: &dyn Traces, seed: u64) -> Started {
    let rate = if values.switch("stages")? { Groups::large_prefix_stages() } else { rate(values)? };
    sized(Groups::large_prefix(rate, models.base), values, seed)
}

pub(super) const SHARED_PREFIX: &[Parameter] = &[
    parameter("at_seconds", 20.0, "when they come; by then every replica takes its full share"),
    parameter("grouped", 0.0, "1 for the prompts of a group one after the other, 0 for all shuffled"),
    parameter("groups", 64.0, "groups of prompts that share a prefix"),
    parameter("prompts", 16.0, "prompts of a group"),
    parameter("prefix_tokens", 2_048.0, "tokens of a prefix"),
    parameter("question_tokens", 128.0, "tokens of a prompt after that"),
    parameter("output_tokens", 256.0, "tokens of an answer"),
];

pub(super) fn shared_prefix(values: &Values, models: &Models, _: &dyn Traces, seed: u64) -> Started {
    let order = if values.switch("grouped")? { Order::Grouped } else { Order::Shuffled };
    let delay = values.seconds("at_seconds")?;
    let requests = with_sizes(Groups::shared_prefix(order, models.base), values)?.start(seed)?;
    Ok(Box::new(requests.map(move |request| Arrival { at: request.at + delay, ..request })))
}

pub(super) const CODE_GENERATION: &[Parameter] = &[
    parameter("clients", 40.0, "sessions at a time"),
    parameter("start_rate", 2.0, "clients that begin each second"),
    parameter("pause_seconds", 0.001, "from an answer to the same client's next request"),
    parameter("question_tokens", 1_500.0, "tokens that a turn adds"),
    parameter("output_tokens", 800.0, "tokens of an answer"),
];

pub(super) fn code_generation(values: &Values, models: &Models, _: &dyn Traces, seed: u64) -> Started {
    let sessions = CodeGeneration {
        clients: clients(values)?,
        question: tokens(values, "question_tokens")?,
        output: tokens(values, "output_tokens")?,
        ..CodeGeneration::new(1, models.base)
    };
    Ok(Box::new(sessions.start(seed)?))
}

fn clients(values: &Values) -> Result<Clients, WorkloadError> {
    let (count, start_rate) = (values.whole("clients")?, values.number("start_rate"));
    Ok(Clients { count, start_rate, pause: values.seconds("pause_seconds")? })
}

pub(super) const REASONING: &[Parameter] = &[
    parameter("clients", 250.0, "requests open at a time"),
    parameter("start_rate", 20.0, "clients that begin each second"),
    parameter("pause_seconds", 0.001, "from an answer to the same client's next request"),
    parameter("question_tokens", 1_000.0, "tokens of a prompt after the 250 that all share"),
    parameter("output_tokens", 8_000.0, "mean tokens of an answer, of 32,000 at most"),
];

pub(super) fn reasoning(values: &Values, models: &Models, _: &dyn Traces, seed: u64) -> Started {
    let published = Reasoning::new(1, models.base);
    let output = Range { mean: tokens(values, "output_tokens")?.0, ..published.output };
    let question = tokens(values, "question_tokens")?;
    Ok(Box::new(Reasoning { clients: clients(values)?, question, output, ..published }.start(seed)?))
}

pub(super) const CHAT_THREADS: &[Parameter] = &[
    parameter("clients", 800.0, "requests open at a time"),
    parameter("start_rate", 800.0, "clients that begin each second"),
    parameter("pause_seconds", 0.001, "from an answer to the same client's next request"),
    parameter("threads", 800.0, "threads"),
    parameter("turns", 10.0, "prompts of a thread"),
    parameter("growth", 1.3, "how many times as long as the last one a prompt is"),
    parameter("prompt_tokens", 832.0, "mean tokens of a prompt"),
    parameter("output_tokens", 76.0, "mean tokens of an answer"),
    parameter("spread", 0.5, "standard deviation of the logarithm of a thread's length"),
];

pub(super) fn chat_threads(values: &Values, models: &Models, _: &dyn Traces, seed: u64) -> Started {
    let threads = ChatThreads {
        clients: clients(values)?,
        threads: values.whole("threads")?,
        turns: values.whole("turns")?,
        growth: values.number("growth"),
        prompt_mean: values.number("prompt_tokens"),
        output_mean: values.number("output_tokens"),
        spread: values.number("spread"),
        model: models.base,
    };
    Ok(Box::new(threads.start(seed)?))
}

pub(super) const REPLAY: &[Parameter] = &[
    parameter("skip_seconds", 0.0, "how much of the trace to leave out at its start, in its own time"),
    parameter("span_seconds", 0.0, "how much of the trace to play, in its own time; 0 for all that follows"),
    parameter(
        "model_tokens",
        131_072.0,
        "the longest prompt and answer, together; longer requests are left out",
    ),
];

pub(super) const MOONCAKE_CONVERSATION: &[Parameter] = &[
    parameter("rate", 3.4, "requests per second, on average; recorded were 3.4"),
    parameter("spread_seconds", 3.0, "over how long requests with one timestamp are spread"),
];

pub(super) const MOONCAKE_SYNTHETIC: &[Parameter] = &[
    parameter("rate", 3.9, "requests per second, on average; recorded were 3.9"),
    parameter("spread_seconds", 0.0, "over how long requests with one timestamp are spread"),
];

pub(super) const AZURE_CONVERSATION: &[Parameter] = &[
    parameter("rate", 40.0, "requests per second, on average; recorded were 5.5"),
    parameter("spread_seconds", 0.0, "over how long requests with one timestamp are spread"),
];

pub(super) const AZURE_CODE: &[Parameter] = &[
    parameter("rate", 6.0, "requests per second, on average; recorded were 2.6"),
    parameter("spread_seconds", 0.0, "over how long requests with one timestamp are spread"),
];

pub(super) fn mooncake_conversation(
    values: &Values,
    models: &Models,
    traces: &dyn Traces,
    seed: u64,
) -> Started {
    replay(values, models, traces.requests(Trace::MooncakeConversation), seed)
}

pub(super) fn mooncake_synthetic(
    values: &Values,
    models: &Models,
    traces: &dyn Traces,
    seed: u64,
) -> Started {
    replay(values, models, traces.requests(Trace::MooncakeSynthetic), seed)
}

pub(super) fn azure_conversation(
    values: &Values,
    models: &Models,
    traces: &dyn Traces,
    seed: u64,
) -> Started {
    replay(values, models, traces.requests(Trace::AzureConversation), seed)
}

pub(super) fn azure_code(values: &Values, models: &Models, traces: &dyn Traces, seed: u64) -> Started {
    replay(values, models, traces.requests(Trace::AzureCode), seed)
}

fn replay(values: &Values, models: &Models, requests: Arc<[Arrival]>, seed: u64) -> Started {
    let span = values.seconds("span_seconds")?;
    let replay = Replay {
        spread: values.seconds("spread_seconds")?,
        skip: values.seconds("skip_seconds")?,
        span: (!span.is_zero()).then_some(span),
        model_length: Some(tokens(values, "model_tokens")?),
        longer: Longer::Skip,
        ..Replay::new(requests, Pace::Rate(values.number("rate")), models.base)
    };
    Ok(Box::new(replay.start(seed)?))
}

pub(super) const FAIRNESS: &[Parameter] = &[
    parameter("rate", 60.0, "requests per second of all tenants together"),
    parameter("tenants", 4.0, "tenants"),
    parameter(
        "prompt_tokens",
        500.0,
        "tokens of the first tenant's prompts; the nth tenant's are n times as long",
    ),
    parameter(
        "output_tokens",
        100.0,
        "tokens of the first tenant's answers; the nth tenant's are n times as long",
    ),
    parameter("prefix_tokens", 0.0, "tokens that the prompts of one tenant share"),
];

/// The nth tenant sends prompts and answers n times as long, and half as often as the one before it.
pub(super) fn fairness(values: &Values, models: &Models, _: &dyn Traces, seed: u64) -> Started {
    let count = values.whole("tenants")?;
    if !(2..=64).contains(&count) {
        let (field, value) = ("tenants", f64::from(count));
        return Err(WorkloadError::OutOfRange { field, value, remedy: "a number of tenants from 2 to 64" });
    }
    let (prompt, output) = (tokens(values, "prompt_tokens")?, tokens(values, "output_tokens")?);
    let prefix = tokens(values, "prefix_tokens")?;
    let weight = |number: u32| 0.5_f64.powi(number.cast_signed());
    let total: f64 = (0..count).map(weight).sum();
    let rival = |number: u32| {
        let times = u64::from(number) + 1;
        Rival {
            arrivals: Arrivals::poisson(values.number("rate") * weight(number) / total),
            lengths: Lengths::Fixed { prompt: Tokens(prompt.0 * times), output: Tokens(output.0 * times) },
            prefix,
        }
    };
    let rivals = RivalTenants { tenants: (0..count).map(rival).collect(), model: models.base };
    Ok(Box::new(rivals.start(seed)?))
}
