//! Activity during a breach: which thread delayed the emitter's thread or the reflector's.

use crate::link::{is, need, number, Link, Says, ANSWER_WITHIN};
use latpath_testkit::{equal, Failed, Trial};
use latpath_testkit::{need_btf, trial, Finished, Lack, Started};
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::{gettid, Pid};
use serde_json::{json, Value};
use std::time::{Duration, Instant};

pub fn tests() -> Vec<Trial> {
    let mut needs = need();
    needs.push(need_btf());
    let two = [needs.clone(), vec![need_two_cpus()]].concat();
    vec![
        trial("what_kept_the_emitter_from_its_cpu_is_named", &two, hogged),
        trial("a_reflector_on_the_same_kernel_is_seen_to_be_stopped", &needs, stopped),
        trial("without_the_recorder_a_breach_has_no_context", &needs, unwatched),
    ]
}

/// CPUs that this process may use.
fn cpus() -> Vec<usize> {
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()
}

fn need_two_cpus() -> Lack {
    (cpus().len() < 2).then(|| "needs two CPUs".to_string())
}

/// The breaches printed by an emitter.
fn breaches(said: &Finished) -> Result<Vec<Value>, Failed> {
    let all: Value = serde_json::from_str(&said.stdout).map_err(|e| format!("{e}: {}", said.stderr))?;
    Ok(all["breaches"].as_array().cloned().unwrap_or_default())
}

/// Checks that hold for every report.
fn sums(context: &Value) -> Result<(), Failed> {
    let window = number(context, "window_ns")?;
    let add = |rows: &Value| -> Result<i64, Failed> {
        rows.as_array().into_iter().flatten().map(|row| number(row, "time_ns")).sum()
    };
    for cpu in context["cpus"].as_array().into_iter().flatten() {
        equal("a CPU's row", add(&cpu["ran"])?, window)?;
    }
    for thread in context["threads"].as_array().into_iter().flatten() {
        let states = ["running_ns", "interrupted_ns", "ready_ns", "asleep_ns", "stopped_ns", "unknown_ns"];
        let sum: i64 = states.iter().map(|state| number(thread, state)).sum::<Result<_, _>>()?;
        equal("a thread's states", sum, window)?;
        equal("behind", add(&thread["behind"])?, number(thread, "ready_ns")?)?;
        equal("interrupted", add(&thread["interrupted_by"])?, number(thread, "interrupted_ns")?)?;
    }
    Ok(())
}

/// The thread at this end.
fn of<'a>(context: &'a Value, role: &str) -> Result<&'a Value, Failed> {
    let mut threads = context["threads"].as_array().into_iter().flatten();
    let found = threads.find(|thread| thread["role"] == json!(role));
    found.ok_or_else(|| format!("no {role}: {context}").into())
}

/// Whether the thread at this end was in this state for most of the time.
fn most(context: &Value, role: &str, state: &str) -> Result<bool, Failed> {
    Ok(number(of(context, role)?, state)? * 2 > number(context, "window_ns")?)
}

/// Occupies a CPU with real-time priority for `time`; returns the thread's TID.
fn hog(cpu: usize, time: Duration) -> i32 {
    std::thread::spawn(move || {
        let mut set = CpuSet::new();
        set.set(cpu).expect("the CPU was there before");
        sched_setaffinity(Pid::from_raw(0), &set).expect("it may be used");
        let param = libc::sched_param { sched_priority: 50 };
        // SAFETY: the parameter outlives the call.
        assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) }, 0, "root may");
        // Causes a switch, because switches record a thread's priority.
        latpath_testkit::waits::fault_for(Duration::from_millis(1));
        let until = Instant::now() + time;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        gettid().as_raw()
    })
    .join()
    .expect("it only spins")
}

/// Stops an emitter that continues after breaches, and finds the intended breach; a busy machine adds others. Checks
/// all of them.
fn found(emitter: Started, is_it: impl Fn(&Value) -> bool) -> Result<Value, Failed> {
    emitter.interrupt();
    let said = emitter.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(3))?;
    let breaches = breaches(&said)?;
    for breach in &breaches {
        sums(&breach["context"])?;
    }
    let found = breaches.iter().map(|breach| &breach["context"]).find(|context| is_it(context));
    found.cloned().ok_or_else(|| format!("not among the breaches: {breaches:?}").into())
}

fn hogged() -> Result<(), Failed> {
    let [theirs, .., ours] = cpus()[..] else { return Err("there were two CPUs before".into()) };
    let link = Link::new()?;
    let mut reflector = link.reflect(&format!("--cpu {theirs}"))?;
    let emitter = link.start_emit(&format!("10.77.0.2 --cpu {ours} --threshold 50ms --keep-going"))?;
    reflector.answers(200)?;
    // A hog between two probes causes no breach.
    let hogs: Vec<i32> = (0..8)
        .map(|_| {
            // Interval of the faults.
            latpath_testkit::waits::fault_for(Duration::from_millis(100));
            hog(ours, Duration::from_millis(200))
        })
        .collect();
    let most = |context: &Value| most(context, "emitter", "ready_ns").is_ok_and(|so| so);
    let first = |context: &Value| of(context, "emitter").map_or(Value::Null, |thread| thread["behind"][0].clone());
    let behind = |context: &Value| hogs.iter().any(|tid| first(context)["pid"] == json!(tid));
    let context = found(emitter, |context| behind(context) && most(context))?;
    equal("complete", &context["complete"], &json!(true))?;
    equal("as what", &first(&context)["class"], &json!("FIFO 50"))
}

fn stopped() -> Result<(), Failed> {
    let link = Link::new()?;
    let mut reflector = link.reflect("")?;
    // One at a time, since only the worst of many breaches are reported.
    let emitter = link.start_emit("10.77.0.2 --threshold 80ms --keep-going")?;
    reflector.answers(200)?;
    for _ in 0..3 {
        reflector.stands_still()?;
        latpath_testkit::waits::fault_for(Duration::from_millis(300));
        reflector.goes_on();
        reflector.answers(50)?;
    }
    let is_it = |context: &Value| most(context, "reflector", "stopped_ns").is_ok_and(|so| so);
    let context = found(emitter, is_it)?;
    equal("which", number(of(&context, "reflector")?, "pid")?, i64::from(reflector.0.pid()))?;
    is(&format!("asleep most of the time: {context}"), most(&context, "emitter", "asleep_ns")?)
}

fn unwatched() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let said = link.emit("10.77.0.2 --count 20 --threshold 1ns --keep-going --no-flight")?;
    equal("exit code", said.code, Some(3))?;
    equal("over", number(&said.session()?, "over_threshold")?, 20)?;
    is("none is reported", breaches(&said)?.is_empty())?;
    let said = link.emit_text("10.77.0.2 --count 20 --threshold 1ns --no-flight")?;
    is(&said.stdout, said.stdout.contains("breach    probe 0 took ") && !said.stdout.contains("context"))?;
    let said = link.emit_text("10.77.0.2 --count 20 --threshold 1ns")?;
    is(&said.stdout, said.stdout.contains("\ncontext    ping-0 ("))
}
