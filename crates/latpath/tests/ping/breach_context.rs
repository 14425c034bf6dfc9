//! Activity during a breach: which thread delayed the emitter's thread or the reflector's.

use crate::link::{is, need, Link, Says, ANSWER_WITHIN};
use latpath_ping::breach_context::{BreachContext, Role, RunTime, ThreadActivity};
use latpath_ping::document::EmitDocument;
use latpath_testkit::{equal, Failed, Trial};
use latpath_testkit::{need_btf, trial, Lack, Started};
use nix::sched::{sched_getaffinity, sched_setaffinity, CpuSet};
use nix::unistd::{gettid, Pid};
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

/// Checks that hold for every report.
fn sums(context: &BreachContext) -> Result<(), Failed> {
    let add = |rows: &[RunTime]| -> i64 { rows.iter().map(|row| row.ns).sum() };
    for cpu in &context.cpus {
        equal("a CPU's row", add(&cpu.ran), context.window_ns)?;
    }
    for t in &context.threads {
        let states = [t.running_ns, t.interrupted_ns, t.ready_ns, t.asleep_ns, t.stopped_ns, t.unknown_ns];
        equal("a thread's states", states.iter().sum(), context.window_ns)?;
        equal("behind", add(&t.behind), t.ready_ns)?;
        equal("interrupted", add(&t.interrupted_by), t.interrupted_ns)?;
    }
    Ok(())
}

/// The activity of the thread at this end.
fn of(context: &BreachContext, role: Role) -> Option<&ThreadActivity> {
    context.threads.iter().find(|thread| thread.role == role)
}

/// Whether the thread at this end was in a state for most of the time; `state` returns the time in that state.
fn most(context: &BreachContext, role: Role, state: fn(&ThreadActivity) -> i64) -> bool {
    of(context, role).is_some_and(|thread| state(thread) * 2 > context.window_ns)
}

/// Occupies a CPU with real-time priority for `time`; returns the thread's TID.
fn hog(cpu: usize, time: Duration) -> u32 {
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
        gettid().as_raw() as u32
    })
    .join()
    .expect("it only spins")
}

/// Stops an emitter that continues after breaches, checks all of its breaches, and returns the intended one: a busy
/// machine causes others.
fn found(emitter: Started, is_it: impl Fn(&BreachContext) -> bool) -> Result<BreachContext, Failed> {
    emitter.interrupt();
    let said = emitter.finish(ANSWER_WITHIN)?;
    equal(&said.stderr, said.code, Some(3))?;
    let breaches = said.document::<EmitDocument>()?.breaches;
    for breach in &breaches {
        sums(breach.context.as_ref().ok_or("a breach without a context")?)?;
    }
    let found = breaches.iter().filter_map(|breach| breach.context.as_ref()).find(|context| is_it(context));
    found.cloned().ok_or_else(|| format!("not among the breaches: {breaches:?}").into())
}

fn hogged() -> Result<(), Failed> {
    let [theirs, .., ours] = cpus()[..] else { return Err("there were two CPUs before".into()) };
    let link = Link::new()?;
    let mut reflector = link.reflect(&format!("--cpu {theirs}"))?;
    let emitter = link.start_emit(&format!("10.77.0.2 --cpu {ours} --threshold 50ms --keep-going"))?;
    reflector.answers(200)?;
    // A hog that runs between two probes causes no breach, so several hogs run.
    let hogs: Vec<u32> = (0..8)
        .map(|_| {
            // Pause before each hog.
            latpath_testkit::waits::fault_for(Duration::from_millis(100));
            hog(ours, Duration::from_millis(200))
        })
        .collect();
    fn first(context: &BreachContext) -> Option<&RunTime> {
        of(context, Role::Emitter)?.behind.first()
    }
    let behind =
        |context: &BreachContext| first(context).and_then(|ran| ran.pid).is_some_and(|tid| hogs.contains(&tid));
    let context = found(emitter, |context| behind(context) && most(context, Role::Emitter, |t| t.ready_ns))?;
    is("it is complete", context.complete)?;
    equal("as what", first(&context).and_then(|ran| ran.class.as_deref()), Some("FIFO 50"))
}

fn stopped() -> Result<(), Failed> {
    let link = Link::new()?;
    let mut reflector = link.reflect("")?;
    // Sends one probe at a time, so that breaches are few: of many, only the worst are reported.
    let emitter = link.start_emit("10.77.0.2 --threshold 80ms --keep-going")?;
    reflector.answers(200)?;
    for _ in 0..3 {
        reflector.stands_still()?;
        latpath_testkit::waits::fault_for(Duration::from_millis(300));
        reflector.goes_on();
        reflector.answers(50)?;
    }
    let context = found(emitter, |context| most(context, Role::Reflector, |t| t.stopped_ns))?;
    equal("which", of(&context, Role::Reflector).map(|thread| thread.pid), Some(reflector.0.pid()))?;
    is(&format!("asleep most of the time: {context:?}"), most(&context, Role::Emitter, |t| t.asleep_ns))
}

fn unwatched() -> Result<(), Failed> {
    let link = Link::new()?;
    let _reflector = link.reflect("")?;
    let said = link.emit("10.77.0.2 --count 20 --threshold 1ns --keep-going --no-flight")?;
    equal("exit code", said.code, Some(3))?;
    equal("over", said.session()?.report.over_threshold, 20)?;
    is("none is reported", said.document::<EmitDocument>()?.breaches.is_empty())?;
    let said = link.emit_text("10.77.0.2 --count 20 --threshold 1ns --no-flight")?;
    is(&said.stdout, said.stdout.contains("breach    probe 0 took ") && !said.stdout.contains("context"))?;
    let said = link.emit_text("10.77.0.2 --count 20 --threshold 1ns")?;
    is(&said.stdout, said.stdout.contains("\ncontext    ping-0 ("))
}
