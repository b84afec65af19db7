//! Recorded traffic: what ships within the program, and files by path, plain or gzipped.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};
use expediter_fleet_sim::presets::{Client, Trace, Traces};
use expediter_types::{Arrival, Tokens};
use expediter_wire::trace::servegen::{self, read_clients, read_windows};
use expediter_wire::trace::{Format, Reader};

use crate::small_file;
use flate2::bufread::MultiGzDecoder;

/// The traces of the repository's `traces/`, each read at its first use and then shared by all runs.
#[derive(Debug, Default)]
pub(crate) struct ShippedTraces {
    requests: [OnceLock<Arc<[Arrival]>>; SHIPPED.len()],
    clients: OnceLock<Vec<Client>>,
}

struct Shipped {
    trace: Trace,
    format: Format,
    bytes: &'static [u8],
}

macro_rules! shipped {
    ($trace:ident, $format:ident, $file:literal) => {
        Shipped {
            trace: Trace::$trace,
            format: Format::$format,
            bytes: include_bytes!(concat!("../../../../traces/", $file)),
        }
    };
}

static SHIPPED: [Shipped; 4] = [
    shipped!(MooncakeConversation, Mooncake, "mooncake_conversation_trace.jsonl.gz"),
    shipped!(MooncakeSynthetic, Mooncake, "mooncake_synthetic_trace.jsonl.gz"),
    shipped!(AzureCode, Azure, "azure_llm_2023_code.csv.gz"),
    shipped!(AzureConversation, Azure, "azure_llm_2023_conv.csv.gz"),
];

const CLIENTS: &str = include_str!("../../../../traces/servegen_m_large_clients.csv");

impl ShippedTraces {
    /// The shipped traces, with other clients than the shipped ones.
    pub(crate) fn with_clients(clients: Vec<Client>) -> Self {
        Self { clients: OnceLock::from(clients), ..Self::default() }
    }
}

impl Traces for ShippedTraces {
    fn requests(&self, trace: Trace) -> Arc<[Arrival]> {
        let place = SHIPPED.iter().position(|shipped| shipped.trace == trace);
        let place = place.expect("a test asks for every trace");
        let Shipped { format, bytes, .. } = SHIPPED[place];
        let read = || read_requests(bytes, Some(format), None).expect("a test reads every trace").into();
        Arc::clone(self.requests[place].get_or_init(read))
    }

    fn clients(&self) -> Vec<Client> {
        let read =
            || read_clients(CLIENTS).expect("a test reads the clients").iter().map(to_client).collect();
        self.clients.get_or_init(read).clone()
    }
}

/// Reads a trace of single requests. Without a format, its first line tells. A request that needs more than
/// `model_length` is a mistake.
///
/// # Errors
/// The file cannot be read, or a line is wrong: file, line, field and remedy. Nothing is returned then.
pub(crate) fn requests_from_path(
    path: &Path,
    format: Option<Format>,
    model_length: Option<Tokens>,
) -> Result<Vec<Arrival>> {
    let in_file = || path.display().to_string();
    let file = BufReader::new(File::open(path).with_context(in_file)?);
    read_requests(file, format, model_length).with_context(in_file)
}

fn read_requests(
    bytes: impl BufRead,
    format: Option<Format>,
    model_length: Option<Tokens>,
) -> Result<Vec<Arrival>> {
    let mut lines = BufReader::new(decompressed(bytes)?);
    let mut line = String::new();
    let mut reader: Option<Reader> = None;
    let mut requests = Vec::new();
    for number in 1.. {
        line.clear();
        let mut rest = lines.by_ref().take(LINE_BYTES_MAX);
        if rest.read_line(&mut line).with_context(|| format!("line {number}"))? == 0 {
            break;
        }
        if rest.limit() == 0 {
            bail!("line {number}: longer than {} MiB: a trace has one request a line", LINE_BYTES_MAX >> 20);
        }
        let reader = match &mut reader {
            Some(reader) => reader,
            None => reader.insert(Reader::new(known(format, &line)?, model_length)),
        };
        requests.extend(reader.line(&line)?);
        if requests.len() > REQUESTS_MAX {
            bail!("line {number}: more than {REQUESTS_MAX} requests: cut the trace");
        }
    }
    if requests.is_empty() {
        bail!("it holds no requests: give a trace with at least one");
    }
    Ok(requests)
}

/// A prompt of ten million tokens takes half of it.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// The largest public trace has a tenth as many.
const REQUESTS_MAX: usize = 10_000_000;

fn known(format: Option<Format>, first_line: &str) -> Result<Format> {
    format.or_else(|| Format::guess(first_line)).with_context(|| {
        let names = Format::ALL.map(Format::name).join(", ");
        format!("line 1 belongs to no known format: name the format, one of {names}")
    })
}

/// Reads `ServeGen`'s clients: a folder of its `chunk-*-trace.csv`, or a table as this program ships it.
///
/// # Errors
/// As with [`requests_from_path`].
pub(crate) fn clients_from_path(path: &Path) -> Result<Vec<Client>> {
    if path.is_dir() {
        return read_folder(path);
    }
    let in_file = || path.display().to_string();
    let clients = read_clients(&read_text(path)?).with_context(in_file)?;
    if clients.is_empty() {
        bail!("{}: it holds no clients: give a table with at least one", path.display());
    }
    Ok(clients.iter().map(to_client).collect())
}

fn read_folder(folder: &Path) -> Result<Vec<Client>> {
    let in_folder = || folder.display().to_string();
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in folder.read_dir().with_context(in_folder)? {
        let path = entry.with_context(in_folder)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("chunk-") && name.contains("-trace.csv") {
            files.push(path);
        }
    }
    // The order of a folder differs from machine to machine.
    files.sort_unstable();
    let mut clients = Vec::new();
    for (number, path) in (0..).zip(files) {
        let windows = read_windows(&read_text(&path)?).with_context(|| path.display().to_string())?;
        clients.extend(servegen::Client::of_windows(number, &windows).as_ref().map(to_client));
    }
    if clients.is_empty() {
        bail!("{}: no client sends anything: give the folder of `chunk-*-trace.csv`", folder.display());
    }
    Ok(clients)
}

fn read_text(path: &Path) -> Result<String> {
    let in_file = || path.display().to_string();
    let file = BufReader::new(File::open(path).with_context(in_file)?);
    small_file::read_from(decompressed(file)?).with_context(in_file)
}

fn to_client(client: &servegen::Client) -> Client {
    Client { rate: client.rate, cv: client.cv }
}

/// What the bytes say once they are unpacked, if they are packed: their first two tell, whatever the name does.
fn decompressed<'a>(mut bytes: impl BufRead + 'a) -> Result<Box<dyn Read + 'a>> {
    if bytes.fill_buf()?.starts_with(GZIP) {
        Ok(Box::new(MultiGzDecoder::new(bytes)))
    } else {
        Ok(Box::new(bytes))
    }
}

/// Source: RFC 1952, section 2.3.1.
const GZIP: &[u8] = &[0x1f, 0x8b];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io::Write as _;

    use expediter_fleet_sim::presets::{PRESETS, Preset};

    use super::*;

    #[test]
    fn a_line_without_an_end_is_refused() {
        let endless = BufReader::new(std::io::repeat(b'7'));
        let error = read_requests(endless, Some(Format::Mooncake), None).unwrap_err();
        assert!(error.to_string().contains("line 1: longer than 16 MiB"), "{error}");
    }

    #[test]
    fn every_shipped_trace_can_be_read() {
        let traces = ShippedTraces::default();
        let rows: Vec<usize> = SHIPPED.iter().map(|shipped| traces.requests(shipped.trace).len()).collect();
        assert_eq!(rows, [12_031, 3_993, 8_819, 19_366]);
        assert_eq!(traces.clients().len(), 162);
    }

    #[test]
    fn every_preset_starts_on_shipped_traces() {
        let traces = ShippedTraces::default();
        for preset in PRESETS {
            let started = preset.start(&preset.values(), &preset.fleet().models, &traces, 1);
            assert!(started.is_ok_and(|mut workload| workload.next().is_some()), "{}", preset.name);
        }
    }

    /// The calibration of the reference fleet gives token hit ratios of 0, 23, 36, 44 and 46 % for conversation
    /// lengths where the share `hit` of long prompts begins with a resident prefix; the lengths are to be 1,800 in
    /// and 300 out on average, less what the cut at 8,000 and 2,000 takes.
    #[test]
    fn conversations_hit_as_often_as_calibrated() {
        let (traces, preset) = (ShippedTraces::default(), Preset::find("conversation").unwrap());
        for (hit, expected) in [(0.0, 0.0), (0.5, 0.23), (0.8, 0.36), (0.95, 0.44), (1.0, 0.46)] {
            let mut values = preset.values();
            values.set("hit", hit).unwrap();
            let mut workload = preset.start(&values, &preset.fleet().models, &traces, 1).unwrap();
            let (mut prompts, mut outputs, mut hits, mut seen) = (0, 0, 0, BTreeSet::new());
            for _ in 0..4_000 {
                let request = workload.next().unwrap();
                let hashes = &request.prompt.prompt_hashes()[..request.prompt.prompt_hashes().len().min(96)];
                hits += 16 * hashes.iter().take_while(|hash| seen.contains(*hash)).count();
                prompts += request.prompt.tokens().0;
                outputs += request.output.0;
                seen.extend(hashes.iter().copied());
            }
            let ratio = hits as f64 / prompts as f64;
            assert!((ratio - expected).abs() < 0.02, "hit {hit}: {ratio}, calibrated {expected}");
            let (prompt, output) = (prompts as f64 / 4_000.0, outputs as f64 / 4_000.0);
            assert!((prompt / 1_800.0 - 1.0).abs() < 0.04, "{prompt} tokens a prompt");
            assert!((output / 300.0 - 1.0).abs() < 0.05, "{output} tokens an answer");
        }
    }

    #[test]
    fn a_path_may_be_plain_or_gzipped_and_a_mistake_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            path
        };
        let good = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n";
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(good.as_bytes()).unwrap();
        for path in [write("plain", good.as_bytes()), write("packed", &packer.finish().unwrap())] {
            assert_eq!(requests_from_path(&path, None, None).unwrap().len(), 1, "{}", path.display());
        }
        let bad = write("bad.csv", format!("{good}2023-11-16 18:15:40,1,1\n").as_bytes());
        let unknown = write("unknown.csv", b"a,b\n");
        let empty = write("empty.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n");
        let cases = [
            (&bad, "bad.csv: line 3: `TIMESTAMP` is 6.680 s earlier"),
            (&unknown, "unknown.csv: line 1 belongs to no known format: name the format, one of mooncake, "),
            (&empty, "empty.csv: it holds no requests"),
            (&folder.path().join("absent"), "absent: No such file"),
        ];
        for (path, expected) in cases {
            let message = format!("{:#}", requests_from_path(path, None, None).unwrap_err());
            assert!(message.contains(expected), "{message}");
        }
        let long = requests_from_path(&folder.path().join("plain"), None, Some(Tokens(400)));
        assert!(format!("{:#}", long.unwrap_err()).contains("line 2: prompt and answer are 418 tokens"));
    }

    #[test]
    fn clients_are_read_from_a_folder_or_a_table() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("chunk-0-trace.csv"), "0,2,1.5,Gamma,1,1\n600,0,0,,0,0\n").unwrap();
        std::fs::write(folder.path().join("chunk-1-trace.csv"), "0,0,0,,0,0\n").unwrap();
        let clients = clients_from_path(folder.path()).unwrap();
        assert_eq!(clients, [Client { rate: 1.0, cv: 1.5 }], "one of the two is silent");
        assert_eq!(ShippedTraces::with_clients(clients.clone()).clients(), clients);
        let table = folder.path().join("clients.csv");
        std::fs::write(&table, CLIENTS).unwrap();
        assert_eq!(clients_from_path(&table).unwrap().len(), 162);
        std::fs::write(&table, "client,rate\n").unwrap();
        let message = format!("{:#}", clients_from_path(&table).unwrap_err());
        assert!(
            message.contains("clients.csv: line 1: `header` is client,rate: give client,rate_per_"),
            "{message}"
        );
    }
}
