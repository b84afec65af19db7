//! Schedules that a person can read: each file of `tests/golden/` is a rule, requests that meet it, and what the
//! engine does step by step. See `tests/golden/README.md` for how to read and to renew one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroU32;

use expediter_types::{BlockHash, BlockSize, Prompt};

use super::super::*;
use crate::sequence::Sequence;
use crate::step_time::Coefficients;
use crate::{FinishReason, LoraSettings, Scheduling};

/// One test a file, of the same name.
macro_rules! golden {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name), include_str!(concat!("../../../tests/golden/", stringify!($name), ".txt")));
            }
        )*

        #[test]
        fn every_file_is_a_test() {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
            let mut files: Vec<String> = std::fs::read_dir(folder)
                .unwrap()
                .filter_map(|entry| entry.unwrap().file_name().to_str()?.strip_suffix(".txt").map(str::to_owned))
                .collect();
            files.sort();
            assert_eq!(files, [$(stringify!($name)),*]);
        }
    };
}

golden! {
    aborts_at_step_boundaries
    admission_asks_for_the_next_chunk
    admission_reserves_the_whole_prompt
    chunked_prefill
    decodes_first
    equal_blocks_are_not_merged
    events_of_a_capture
    events_of_a_long_prompt
    events_of_a_reset
    events_under_eviction
    hashes_know_parent_adapter_and_salt
    head_of_line
    in_use_and_resident
    last_token_is_computed
    least_recently_used_is_evicted
    long_prefill_threshold
    lora_load
    lora_passed_over
    max_num_seqs
    next_turn_finds_the_answer
    own_blocks
    preempted_finds_its_blocks
    preempted_recomputes
    preemption_admits_nobody
    preemption_fcfs
    preemption_of_equals
    preemption_of_itself
    preemption_priority
    preemption_returns_tokens
    priority_order
    queue_limits
    restart
    running_in_order
    sleep
}

/// Where the input of a file ends and the schedule begins.
const RULER: &str = "----\n";

#[expect(clippy::disallowed_methods, reason = "a test that is told to renews its own file")]
fn check(name: &str, file: &str) {
    let (script, expected) = file.split_once(RULER).expect("a line of four dashes");
    let actual = Play::read(script).run();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        let path = format!("{}/tests/golden/{name}.txt", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, format!("{script}{RULER}{actual}")).unwrap();
    } else if actual != expected {
        panic!("{name}: the schedule differs (- expected, + actual)\n{}", difference(expected, &actual));
    }
}

/// Line by line, since a schedule that differs once mostly differs from there on.
fn difference(expected: &str, actual: &str) -> String {
    let (mut expected, mut actual) = (expected.lines(), actual.lines());
    let mut text = String::new();
    loop {
        match (expected.next(), actual.next()) {
            (None, None) => return text,
            (Some(old), Some(new)) if old == new => _ = writeln!(text, "  {old}"),
            (old, new) => {
                text.extend(old.map(|old| format!("- {old}\n")));
                text.extend(new.map(|new| format!("+ {new}\n")));
            }
        }
    }
}

/// A script being played.
struct Play {
    settings: Settings,
    /// What happens before a step begins, and before it ends.
    before: BTreeMap<u32, Vec<String>>,
    within: BTreeMap<u32, Vec<String>>,
    /// What blocks are called: text and place, then adapter and salt, as in `A3@7$1`.
    names: BTreeMap<BlockHash, String>,
    schedule: String,
}

impl Play {
    fn read(script: &str) -> Self {
        let mut play = Self {
            settings: plain(),
            before: BTreeMap::new(),
            within: BTreeMap::new(),
            names: BTreeMap::new(),
            schedule: String::new(),
        };
        for line in script.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(settings) = line.strip_prefix("settings: ") {
                settings.split(", ").for_each(|setting| set(&mut play.settings, setting));
            } else if let Some((step, act)) =
                line.strip_prefix("before step ").and_then(|it| it.split_once(": "))
            {
                play.before.entry(step.parse().unwrap()).or_default().push(act.to_owned());
            } else if let Some((step, act)) = line.strip_prefix("in step ").and_then(|it| it.split_once(": "))
            {
                play.within.entry(step.parse().unwrap()).or_default().push(act.to_owned());
            } else {
                play.before.entry(1).or_default().push(line.to_owned());
            }
        }
        play
    }

    fn run(mut self) -> String {
        let (mut engine, mut rng, mut now) = (Engine::new(self.settings.clone()), Prng::new(0), Time::ZERO);
        for number in 1.. {
            for act in self.before.remove(&number).unwrap_or_default() {
                self.act(&mut engine, &act, now);
            }
            let Some(step) = engine.begin_step(now, &mut rng) else {
                if self.before.is_empty() {
                    break;
                }
                let waiting = waiting(&engine);
                _ = writeln!(self.schedule, "step {number}: idle | waiting {waiting} | {}", memory(&engine));
                continue;
            };
            let mut line = format!("step {number}: {}", plan(&engine, &step));
            for act in self.within.remove(&number).unwrap_or_default() {
                self.act(&mut engine, &act, now);
            }
            now += step.duration;
            let ended = engine.end_step(now).into_iter().filter(|progress| progress.end.is_some());
            line.extend(ended.map(|progress| format!(" | r{} ends", progress.id.0)));
            let events: Vec<KvEvent> = engine.kv_events().collect();
            for event in &events {
                _ = write!(line, "\n    {}", self.event(event));
            }
            _ = writeln!(self.schedule, "{line}");
            assert!(number < 200, "the schedule does not end:\n{}", self.schedule);
        }
        _ = writeln!(self.schedule, "end: {}", memory(&engine));
        self.schedule
    }

    fn act(&mut self, engine: &mut Engine, act: &str, now: Time) {
        match act.split_once(' ').unwrap_or((act, "")) {
            ("abort", id) => engine.abort(RequestId(id[1..].parse().unwrap())),
            ("sleep", level) => engine.sleep(level.parse().unwrap()),
            ("wake_up", _) => engine.wake_up(),
            ("restart", _) => engine.restart(),
            ("reset_prefix_cache", _) => {
                let done = if engine.reset_prefix_cache() { "done" } else { "not done" };
                _ = writeln!(self.schedule, "  reset_prefix_cache: {done}");
            }
            (id, fields) => {
                let request = self.request(id, fields);
                if let Err(error) = engine.arrive(request, now) {
                    _ = writeln!(self.schedule, "  {id} is refused: {error}");
                }
            }
        }
    }

    /// For example `r3 text B, prompt 6, output 2, adapter 7`.
    fn request(&mut self, id: &str, fields: &str) -> Request {
        let (mut text, mut prompt, mut output, mut adapter, mut salt, mut priority) = ("", 0, 1, None, 0, 0);
        for field in fields.split(", ") {
            let (name, value) = field.split_once(' ').unwrap();
            match name {
                "text" => text = value,
                "prompt" => prompt = value.parse().unwrap(),
                "output" => output = value.parse().unwrap(),
                "adapter" => adapter = Some(ModelId(value.parse().unwrap())),
                "salt" => salt = value.parse().unwrap(),
                "priority" => priority = value.parse().unwrap(),
                _ => panic!("`{name}` is no field of a request"),
            }
        }
        let tokens: Vec<u32> = (0..prompt + output).map(|place| token(text, place)).collect();
        let (ids, answer) = tokens.split_at(prompt as usize);
        let root = BlockHash::salt(adapter, salt);
        let request = Request {
            id: RequestId(id.strip_prefix('r').expect("requests are r1, r2 and so on").parse().unwrap()),
            prompt: match text {
                "?" => Prompt::opaque(Tokens(prompt.into())),
                _ => Prompt::with_continuation(ids, answer, self.settings.block_size, root),
            },
            output: Tokens(u64::from(output)),
            ends_with: FinishReason::Length,
            adapter,
            priority,
        };
        for (place, hash) in request.prompt.hashes().iter().enumerate() {
            let mut name = format!("{text}{place}");
            name.extend(adapter.map(|ModelId(id)| format!("@{id}")));
            if salt != 0 {
                _ = write!(name, "${salt}");
            }
            self.names.entry(*hash).or_insert(name);
        }
        request
    }

    fn event(&mut self, event: &KvEvent) -> String {
        let names = &mut self.names;
        match event {
            KvEvent::Removed { hash } => format!("removed {}", names[hash]),
            KvEvent::Cleared => "cleared".to_owned(),
            KvEvent::Stored { parent, hashes, request, first_block, adapter } => {
                let own = |place: usize| format!("r{}#{}", request.0, first_block + place);
                let hashes = hashes.iter().enumerate();
                let hashes: Vec<String> = hashes
                    .map(|(place, hash)| names.entry(*hash).or_insert_with(|| own(place)).clone())
                    .collect();
                let hashes = match &hashes[..] {
                    [first, .., last] if hashes.len() > 12 => format!("{first} to {last}"),
                    all => all.join(" "),
                };
                let mut text = format!("stored {hashes} of r{} from {first_block}", request.0);
                text.extend(parent.iter().map(|parent| format!(" after {}", names[parent])));
                text.extend(adapter.map(|ModelId(id)| format!(" by adapter {id}")));
                text
            }
        }
    }
}

/// The token of a text at a place. `A8B` is text A up to token 8, and B from there.
fn token(text: &str, place: u32) -> u32 {
    let cut: Option<u32> = text.get(1..text.len() - 1).and_then(|cut| cut.parse().ok());
    let letter = if cut.is_some_and(|cut| place >= cut) { text.bytes().last() } else { text.bytes().next() };
    u32::from(letter.expect("a text has a letter")) * 100_000 + place
}

/// Four tokens a block, steps of exactly 10 ms, and a cache that is told of.
fn plain() -> Settings {
    Settings {
        block_size: BlockSize(NonZeroU32::new(4).unwrap()),
        coefficients: Coefficients { c0: 10.0, w1: 0.0, g: 0.0, g0: 0.0, a: 0.0, k: 0.0, b: 0.0, pp: 0.0 },
        host_overhead: Duration::ZERO,
        noise_sigma: 0.0,
        kv_events: true,
        ..Settings::default()
    }
}

/// For example `max_num_seqs 4`. `blocks` are the usable ones.
fn set(settings: &mut Settings, setting: &str) {
    let (name, value) = setting.split_once(' ').unwrap();
    let number = || value.parse::<u32>().unwrap();
    match name {
        "blocks" => settings.blocks = Blocks(u64::from(number()) + 1),
        "block_size" => settings.block_size = BlockSize(value.parse().unwrap()),
        "max_num_seqs" => settings.max_num_seqs = number(),
        "budget" => settings.max_num_batched_tokens = Tokens(number().into()),
        "long_prefill_token_threshold" => {
            settings.long_prefill_token_threshold = Some(Tokens(number().into()));
        }
        "scheduling" => {
            assert_eq!(value, "priority");
            settings.scheduling = Scheduling::Priority;
        }
        "reserve_full_sequence" => settings.reserve_full_sequence = value.parse().unwrap(),
        "enable_prefix_caching" => settings.enable_prefix_caching = value.parse().unwrap(),
        "max_num_queued_reqs" => settings.max_num_queued_reqs = Some(number()),
        "max_num_queued_tokens" => settings.max_num_queued_tokens = Some(Tokens(number().into())),
        "max_loras" | "max_cpu_loras" => {
            let second = Duration::from_secs(1);
            let lora =
                LoraSettings { disk_load_min: second, disk_load_max: second, ..LoraSettings::default() };
            let lora = settings.lora.get_or_insert(lora);
            lora.bytes_per_rank = 0;
            if name == "max_loras" { lora.max_loras = number() } else { lora.max_cpu_loras = Some(number()) }
        }
        _ => panic!("`{name}` is no setting"),
    }
}

fn plan(engine: &Engine, step: &Step) -> String {
    let batch: Vec<String> = engine
        .scheduler
        .sequences()
        .iter()
        .filter(|sequence| sequence.scheduled > Tokens::ZERO)
        .map(part)
        .collect();
    let mut line = format!("{} | waiting {} | {}", batch.join(", "), waiting(engine), memory(engine));
    let rested: Vec<String> = engine
        .scheduler
        .sequences()
        .iter()
        .filter(|sequence| sequence.scheduled == Tokens::ZERO)
        .map(|sequence| format!("r{}", sequence.request.id.0))
        .collect();
    if !rested.is_empty() {
        line = format!("{line} | without tokens {}", rested.join(" "));
    }
    if engine.settings().lora.is_some() {
        line = format!("{line} | {} ms", step.duration.as_millis());
    }
    line
}

fn part(sequence: &Sequence) -> String {
    let (id, tokens) = (sequence.request.id.0, sequence.scheduled.0);
    if sequence.decodes() {
        format!("r{id} decode")
    } else {
        format!("r{id} prefill {}+{tokens}/{}", sequence.computed.0, sequence.known().0)
    }
}

fn waiting(engine: &Engine) -> String {
    let waiting = engine.scheduler.waiting();
    let ids: Vec<String> = waiting.ids().iter().map(|id| format!("r{}", id.0)).collect();
    let mut text = if ids.is_empty() { "-".to_owned() } else { ids.join(" ") };
    if waiting.deferred() > 0 {
        _ = write!(text, " ({} deferred)", waiting.deferred());
    }
    text
}

fn memory(engine: &Engine) -> String {
    let stats = engine.stats();
    let free = stats.blocks.0 - stats.in_use.0;
    format!("free {free}, in use {}, resident {}", stats.in_use.0, stats.resident.0)
}
