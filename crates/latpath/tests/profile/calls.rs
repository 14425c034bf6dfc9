//! System calls of a VM whose threads are created and end, like those of QEMU's thread pool.

use crate::{json, Profile};
use latpath_observe::profile::CallLine;
use latpath_testkit::{equal, latpath, waits, Failed};
use nix::sys::stat::Mode;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Number of threads: more than the kernel's table has entries, and more than there are PIDs with the default
/// `pid_max`.
const THREADS: u64 = 40_000;

/// Program that waits for its FIFO `go`, starts the threads one at a time, each of which makes one system call, and
/// then writes to `done`.
const POOL: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *work(void *of)
{
	getppid();
	return of;
}
int main(int argc, char **argv)
{
	char begin;
	FILE *go = fopen(argv[1], "r"), *done;
	pthread_attr_t small;
	pthread_t thread;
	if (!go || fread(&begin, 1, 1, go) != 1)
		return 1;
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (long n = 0; n < atol(argv[3]); n++) {
		if (pthread_create(&thread, &small, work, NULL) || pthread_join(thread, NULL))
			return 1;
		/* No faster than a pool under load. */
		if (n % 100 == 0)
			usleep(10000);
	}
	done = fopen(argv[2], "w");
	fputs("done\n", done);
	fclose(done);
	for (;;)
		pause();
}
"#;

struct Vm(Child);

impl Drop for Vm {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn calls_of<'p>(profile: &'p Profile, call: &str) -> Vec<&'p CallLine> {
    profile.figures.system_calls.iter().filter(|line| line.call == call).collect()
}

pub fn of_threads_that_end() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let [source, program, go, done] =
        ["pool.c", "qemu-system-x86_64", "go", "done"].map(|name| folder.path().join(name));
    fs::write(&source, POOL)?;
    let built = Command::new("gcc").args(["-O1", "-pthread", "-o"]).args([&program, &source]).output()?;
    equal(&String::from_utf8_lossy(&built.stderr), built.status.success(), true)?;
    [&go, &done].into_iter().try_for_each(|fifo| nix::unistd::mkfifo(fifo, Mode::S_IRUSR | Mode::S_IWUSR))?;
    let name = format!("lp-pool-{}", std::process::id());
    let mut vm = Command::new(&program);
    vm.args([&go, &done]).arg(THREADS.to_string()).args(["-name", &name]).stdin(Stdio::null());
    let vm = Vm(vm.spawn()?);
    let exe = format!("/proc/{}/exe", vm.0.id());
    waits::until("it runs", || fs::read_link(&exe).is_ok_and(|exe| exe == Path::new(&program)))?;

    let mut profile = latpath(&format!("profile --syscalls --json --vm {name} -- sh -c"));
    let profile = profile.arg("echo > \"$0\"; cat \"$1\" >&2").args([&go, &done]).output()?;
    let profile: Profile = json(&profile)?;
    let notes = profile.notes.concat();
    equal(&notes, notes.contains("system calls are missing"), false)?;
    equal(
        "calls by threads that have ended",
        calls_of(&profile, "getppid").iter().map(|line| line.count).sum(),
        THREADS,
    )?;
    // A thread that reuses an ended thread's TID begins with the return from its own clone. This must not count as the
    // return from the ended thread's last call.
    for call in ["exit", "exit_group"] {
        equal(call, calls_of(&profile, call).len(), 0)?;
    }
    let ended =
        calls_of(&profile, "getppid").into_iter().find(|line| line.tid == 0).ok_or("no sum of ended threads")?;
    equal("a sum has its process's VM", &ended.vm, &name)
}
