//! Profiles for the Firefox Profiler (profiler.firefox.com reads the file in the browser, and uploads nothing), in its
//! "processed profile" format: column-oriented tables, whose rows refer to each other by index. The profiler upgrades
//! files of earlier format versions when it opens them.

use latpath_model::Ns;
use latpath_profile::{Header, Mode, Samples, Stack};
use serde::ser::{Serialize, Serializer};
use serde_json::json;
use std::collections::HashMap;
use std::io::{self, Write};

#[cfg(test)]
mod tests;

/// Version of the format: the first in which all threads share one table of sources with these columns.
const VERSION: u32 = 61;
/// Indices in `meta.categories`. The format requires that 0 is the category of frames without a category.
const USER: u8 = 1;
const KERNEL: u8 = 2;

/// A machine whose samples are in the file.
pub struct Machine<'s> {
    /// The guest's name; `None` for the host.
    pub guest: Option<String>,
    /// Its samples.
    pub samples: &'s Samples,
    /// Offset of the machine's clock from the host's, ns.
    pub offset_ns: Ns,
}

/// A column with the same value in all rows; field 1 is the number of rows.
struct Same<T>(T, usize);

impl<T: Serialize> Serialize for Same<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(std::iter::repeat_n(&self.0, self.1))
    }
}

#[derive(serde::Serialize)]
struct Document {
    meta: serde_json::Value,
    libs: [(); 0],
    shared: Shared,
    threads: Vec<Thread>,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Shared {
    string_array: Vec<String>,
    stack_table: StackTable,
    frame_table: FrameTable,
    func_table: FuncTable,
    resource_table: serde_json::Value,
    native_symbols: serde_json::Value,
    sources: serde_json::Value,
}

/// The tree of all call chains.
#[derive(Default, serde::Serialize)]
struct StackTable {
    frame: Vec<usize>,
    prefix: Vec<Option<usize>>,
    length: usize,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct FrameTable {
    address: Same<i32>,
    inline_depth: Same<u32>,
    category: Vec<u8>,
    subcategory: Same<u32>,
    func: Vec<usize>,
    native_symbol: Same<()>,
    #[serde(rename = "innerWindowID")]
    inner_window_id: Same<u32>,
    line: Same<()>,
    column: Same<()>,
    length: usize,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct FuncTable {
    name: Vec<usize>,
    #[serde(rename = "isJS")]
    is_js: Same<bool>,
    #[serde(rename = "relevantForJS")]
    relevant_for_js: Same<bool>,
    resource: Same<i32>,
    source: Same<()>,
    line_number: Same<()>,
    column_number: Same<()>,
    length: usize,
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct Thread {
    name: String,
    is_main_thread: bool,
    process_type: &'static str,
    process_name: String,
    /// PID, made unique in the file like `tid`.
    pid: String,
    tid: String,
    process_startup_time: f64,
    process_shutdown_time: (),
    register_time: f64,
    unregister_time: (),
    paused_ranges: [(); 0],
    samples: SamplesTable,
    markers: serde_json::Value,
}

#[derive(Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct SamplesTable {
    stack: Vec<Option<usize>>,
    time: Vec<f64>,
    weight: (),
    weight_type: &'static str,
    length: usize,
}

/// A table without rows.
fn empty(columns: &[&str]) -> serde_json::Value {
    let columns = columns.iter().map(|column| ((*column).to_owned(), json!([])));
    columns.chain([("length".to_owned(), json!(0))]).collect()
}

/// Functions, frames and call chains by their index in the tables, which all threads of all machines share.
#[derive(Default)]
struct Tables<'s> {
    functions: HashMap<&'s str, usize>,
    names: Vec<String>,
    frames: HashMap<(usize, u8), usize>,
    func: Vec<usize>,
    category: Vec<u8>,
    stacks: HashMap<(Option<usize>, usize), usize>,
    stack_table: StackTable,
}

impl<'s> Tables<'s> {
    fn frame(&mut self, name: &'s str, category: u8) -> usize {
        let function = *self.functions.entry(name).or_insert_with(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        *self.frames.entry((function, category)).or_insert_with(|| {
            self.func.push(function);
            self.category.push(category);
            self.func.len() - 1
        })
    }

    /// Returns the index of a call chain in the stack table; `None` for a call chain without frames.
    fn stack(&mut self, samples: &'s Samples, stack: &Stack) -> Option<usize> {
        let category = |in_kernel: bool| if in_kernel { KERNEL } else { USER };
        let functions = stack.frames.iter().rev().map(|frame| (samples.name(*frame), category(frame.in_kernel())));
        let guest = (stack.mode == Mode::Guest).then_some(("[guest]", KERNEL));
        functions.chain(guest).fold(None, |prefix, (name, category)| {
            let frame = self.frame(name, category);
            Some(*self.stacks.entry((prefix, frame)).or_insert_with(|| {
                self.stack_table.frame.push(frame);
                self.stack_table.prefix.push(prefix);
                self.stack_table.length += 1;
                self.stack_table.length - 1
            }))
        })
    }

    fn shared(self) -> Shared {
        let (frames, functions) = (self.func.len(), self.names.len());
        Shared {
            string_array: self.names,
            stack_table: self.stack_table,
            frame_table: FrameTable {
                address: Same(-1, frames),
                inline_depth: Same(0, frames),
                category: self.category,
                subcategory: Same(0, frames),
                func: self.func,
                native_symbol: Same((), frames),
                inner_window_id: Same(0, frames),
                line: Same((), frames),
                column: Same((), frames),
                length: frames,
            },
            func_table: FuncTable {
                name: (0..functions).collect(),
                is_js: Same(false, functions),
                relevant_for_js: Same(false, functions),
                resource: Same(-1, functions),
                source: Same((), functions),
                line_number: Same((), functions),
                column_number: Same((), functions),
                length: functions,
            },
            resource_table: empty(&["lib", "name", "host", "type"]),
            native_symbols: empty(&["libIndex", "address", "name", "functionSize"]),
            sources: empty(&["id", "filename", "startLine", "startColumn", "sourceMapURL"]),
        }
    }
}

/// Generates unique IDs of processes or threads: `7`, or `guest0:7` in a guest; `7.1` after a thread has changed its
/// name, or if the kernel has reused the ID.
#[derive(Default)]
struct Numbers(HashMap<String, u32>);

impl Numbers {
    fn unique(&mut self, guest: Option<&str>, number: u32) -> String {
        let name = guest.map_or_else(|| number.to_string(), |guest| format!("{guest}:{number}"));
        let count = self.0.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 {
            name
        } else {
            format!("{name}.{}", *count - 1)
        }
    }
}

fn meta(header: &Header) -> serde_json::Value {
    let category = |name: &str, color: &str| json!({"name": name, "color": color, "subcategories": ["Other"]});
    json!({
        "product": "latpath",
        "importedFrom": format!("latpath {}", header.latpath),
        "oscpu": format!("Linux {}", header.kernel),
        "startTime": header.utc_ns.max(0) as f64 / 1e6,
        "interval": 1000.0 / f64::from(header.frequency.max(1)),
        "preprocessedProfileVersion": VERSION,
        "version": 31,
        "processType": 0,
        "stackwalk": 1,
        "debug": false,
        "symbolicated": true,
        "usesOnlyOneStackType": true,
        "sourceCodeIsNotOnSearchfox": true,
        "categories": [category("Other", "grey"), category("User", "yellow"), category("Kernel", "orange")],
        "markerSchema": [],
        "extensions": empty(&["baseURL", "id", "name"]),
    })
}

/// Writes all samples except idle ones, with times on the timeline of the first machine, the host. Each sample has
/// weight 1; the exact times are in the tables of the text.
///
/// # Errors
/// If `out` cannot be written.
pub fn firefox(header: &Header, machines: &[Machine<'_>], out: impl Write) -> io::Result<()> {
    let begin = machines.first().and_then(|machine| machine.samples.span()).map_or(0, |(from, _)| from);
    let milliseconds = |t: Ns| t.saturating_sub(begin).max(0) as f64 / 1e6;
    let (mut tables, mut pids, mut tids) = (Tables::default(), Numbers::default(), Numbers::default());
    let mut threads: Vec<Thread> = Vec::new();
    for Machine { guest, samples, offset_ns } in machines {
        let (mut processes, mut places) = (HashMap::new(), HashMap::new());
        let mut stacks = HashMap::new();
        let is_idle = |stack: u32| samples.stack(stack).mode == Mode::Idle;
        let mut seen: Vec<_> = samples.raw().iter().filter(|seen| !is_idle(seen.stack)).collect();
        seen.sort_by_key(|seen| seen.t);
        for seen in seen {
            let at = milliseconds(seen.t.saturating_sub(*offset_ns));
            let place = *places.entry(seen.thread).or_insert_with(|| {
                let about = samples.thread(seen.thread);
                let process = processes.entry(about.tgid);
                let (pid, begin) = process.or_insert_with(|| (pids.unique(guest.as_deref(), about.tgid), at)).clone();
                threads.push(Thread {
                    name: about.comm.clone(),
                    is_main_thread: about.tid == about.tgid,
                    process_type: "default",
                    process_name: match guest {
                        Some(guest) => format!("{guest}: {}", about.process),
                        None => about.process.clone(),
                    },
                    pid,
                    tid: tids.unique(guest.as_deref(), about.tid),
                    process_startup_time: begin,
                    process_shutdown_time: (),
                    register_time: at,
                    unregister_time: (),
                    paused_ranges: [],
                    samples: SamplesTable { weight_type: "samples", ..SamplesTable::default() },
                    markers: empty(&["data", "name", "startTime", "endTime", "phase", "category"]),
                });
                threads.len() - 1
            });
            let chain = samples.stack(seen.stack);
            let stack = *stacks.entry(seen.stack).or_insert_with(|| tables.stack(samples, chain));
            let table = &mut threads[place].samples;
            table.stack.push(stack);
            table.time.push(at);
            table.length += 1;
        }
    }
    let document = Document { meta: meta(header), libs: [], shared: tables.shared(), threads };
    serde_json::to_writer(io::BufWriter::new(out), &document).map_err(io::Error::from)
}
