//! What went on during a breach: who kept the emitter's thread, or the reflector's, from its CPU.

use crate::link::{equal, is, need, number, Link};
use crate::support::{need_btf, trial, Finished, Lack};
use libtest_mimic::{Failed, Trial};
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::sys::signal::Signal;
use nix::unistd::{gettid, Pid};
use serde_json::{json, Value};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub fn tests() -> Vec<Trial> {
    let mut needs = need();
    needs.push(need_btf());
    let two = [needs.clone(), vec![need_two_cpus()]].concat();
    vec![
        trial("who_kept_the_emitter_from_its_cpu_is_named", &two, hogged),
        trial("a_reflector_on_the_same_kernel_is_seen_to_be_stopped", &needs, stopped),
        trial("without_the_recorder_nothing_is_said_of_what_went_on_meanwhile", &needs, unwatched),
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

/// The breaches that an emitter printed.
fn breaches(said: &Finished) -> Result<Vec<Value>, Failed> {
    let all: Value = serde_json::from_str(&said.stdout).map_err(|e| format!("{e}: {}", said.stderr))?;
    Ok(all["breaches"].as_array().cloned().unwrap_or_default())
}

/// What must be true of all that is told.
fn sums(meanwhile: &Value) -> Result<(), Failed> {
    let window = number(meanwhile, "window_ns")?;
    let add = |rows: &Value| -> Result<i64, Failed> {
        rows.as_array().into_iter().flatten().map(|row| number(row, "time_ns")).sum()
    };
    for cpu in meanwhile["cpus"].as_array().into_iter().flatten() {
        equal("a CPU's row", add(&cpu["ran"])?, window)?;
    }
    for thread in meanwhile["threads"].as_array().into_iter().flatten() {
        let states = ["running_ns", "interrupted_ns", "ready_ns", "asleep_ns", "stopped_ns", "unknown_ns"];
        let sum: i64 = states.iter().map(|state| number(thread, state)).sum::<Result<_, _>>()?;
        equal("a thread's states", sum, window)?;
        equal("behind", add(&thread["behind"])?, number(thread, "ready_ns")?)?;
        equal("interrupted", add(&thread["interrupted_by"])?, number(thread, "interrupted_ns")?)?;
    }
    Ok(())
}

/// The thread of this end.
fn of<'a>(meanwhile: &'a Value, role: &str) -> Result<&'a Value, Failed> {
    let mut threads = meanwhile["threads"].as_array().into_iter().flatten();
    let found = threads.find(|thread| thread["role"] == json!(role));
    found.ok_or_else(|| format!("no {role}: {meanwhile}").into())
}

/// Takes the CPU from all that is not real time, for some time; says which thread that was.
fn hog(cpu: usize, time: Duration) -> i32 {
    std::thread::spawn(move || {
        let mut set = CpuSet::new();
        set.set(cpu).expect("the CPU was there before");
        sched_setaffinity(Pid::from_raw(0), &set).expect("it may be used");
        let param = libc::sched_param { sched_priority: 50 };
        // SAFETY: the parameter lives as long as the call.
        assert_eq!(unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &param) }, 0, "root may");
        // So that a switch tells of the priority.
        sleep(Duration::from_millis(1));
        let until = Instant::now() + time;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        gettid().as_raw()
    })
    .join()
    .expect("it only spins")
}

fn hogged() -> Result<(), Failed> {
    let [theirs, .., ours] = cpus()[..] else { return Err("there were two CPUs before".into()) };
    let link = Link::new()?;
    let mut reflector = link.reflect(&format!("--cpu {theirs}"))?;
    let mut emitter = link.start_emit(&format!("10.77.0.2 --cpu {ours} --threshold 20ms --timeout 20s"))?;
    reflector.serves_for(Duration::from_millis(200))?;
    let mut hogs = Vec::new();
    // A hog that comes just between two probes breaks nothing.
    while emitter.runs() && hogs.len() < 20 {
        hogs.push(hog(ours, Duration::from_millis(60)));
        sleep(Duration::from_millis(200));
    }
    emitter.interrupt();
    let said = emitter.finish(crate::link::ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(3))?;
    let breaches = breaches(&said)?;
    let meanwhile = &breaches.first().ok_or("no breach is told of")?["meanwhile"];
    sums(meanwhile)?;
    equal("complete", &meanwhile["complete"], &json!(true))?;
    let thread = of(meanwhile, "emitter")?;
    is(
        &format!("it was ready most of the time: {thread}"),
        number(thread, "ready_ns")? * 2 > number(meanwhile, "window_ns")?,
    )?;
    let first = &thread["behind"][0];
    is(&format!("behind one of {hogs:?}: {first}"), hogs.iter().any(|tid| first["pid"] == json!(tid)))?;
    equal("as what", &first["class"], &json!("FIFO 50"))
}

fn stopped() -> Result<(), Failed> {
    let link = Link::new()?;
    let mut reflector = link.reflect("")?;
    let emitter = link.start_emit("10.77.0.2 --threshold 80ms --lost-after 5s --timeout 20s")?;
    reflector.serves_for(Duration::from_millis(200))?;
    reflector.0.signal(Signal::SIGSTOP);
    sleep(Duration::from_millis(200));
    reflector.0.signal(Signal::SIGCONT);
    let said = emitter.finish(crate::link::ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(3))?;
    let breaches = breaches(&said)?;
    let meanwhile = &breaches.first().ok_or("no breach is told of")?["meanwhile"];
    sums(meanwhile)?;
    let window = number(meanwhile, "window_ns")?;
    let thread = of(meanwhile, "reflector")?;
    equal("which", number(thread, "pid")?, i64::from(reflector.0.pid()))?;
    is(&format!("stopped most of the time: {thread}"), number(thread, "stopped_ns")? * 2 > window)?;
    let thread = of(meanwhile, "emitter")?;
    is(&format!("asleep most of the time: {thread}"), number(thread, "asleep_ns")? * 2 > window)
}

fn unwatched() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let said = link.emit("10.77.0.2 --count 20 --threshold 1ns --keep-going --no-flight")?;
    equal("exit code", said.code, Some(3))?;
    equal("over", number(&said.session()?, "over_threshold")?, 20)?;
    is("none is told of", breaches(&said)?.is_empty())?;
    let said = link.emit_text("10.77.0.2 --count 20 --threshold 1ns --no-flight")?;
    is(&said.stdout, said.stdout.contains("breach    probe 0 took ") && !said.stdout.contains("meanwhile"))?;
    let said = link.emit_text("10.77.0.2 --count 20 --threshold 1ns")?;
    is(&said.stdout, said.stdout.contains("\nmeanwhile  ping-0 ("))
}
