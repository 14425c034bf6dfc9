//! `latpath queues` as users run it.

use latpath_testkit::{equal, latpath, need_btf, need_root, trial, Failed};
use serde_json::Value;
use std::process::ExitCode;

fn main() -> ExitCode {
    latpath_testkit::main(vec![
        trial("the_schema_describes_a_queue", &[], schema),
        trial("a_window_of_no_time_and_an_unknown_vm_are_wrong_usage", &[], wrong_usage),
        trial("it_watches_or_says_what_this_kernel_lacks", &[need_root(), need_btf()], watches),
    ])
}

fn schema() -> Result<(), Failed> {
    let output = latpath("schema queues").output()?;
    let schema: Value = serde_json::from_slice(&output.stdout)?;
    let queue = &schema["$defs"]["QueueFigures"]["properties"];
    for key in ["posted_buffers", "used_buffers", "kicks_suppressed", "waited", "posted_index_difference"] {
        equal(key, queue[key]["description"].is_string(), true)?;
    }
    Ok(())
}

fn wrong_usage() -> Result<(), Failed> {
    equal("of no time", latpath("queues --duration 0s").output()?.status.code(), Some(2))?;
    let output = latpath("queues --vm no-such-vm").output()?;
    equal("of no VM", output.status.code(), Some(2))?;
    equal("its name", String::from_utf8(output.stderr)?.contains("--vm no-such-vm: no such VM"), true)
}

fn watches() -> Result<(), Failed> {
    let output = latpath("queues --duration 300ms --json").output()?;
    let said = String::from_utf8(output.stderr)?;
    if output.status.code() == Some(0) {
        let document: Value = serde_json::from_slice(&output.stdout)?;
        equal("the window", document["window_ns"].as_i64() >= Some(300_000_000), true)?;
        for queue in document["devices"].as_array().into_iter().flatten().flat_map(|d| d["queues"].as_array()).flatten()
        {
            equal(&queue.to_string(), queue["posted_index_difference"].as_i64(), Some(0))?;
        }
        return Ok(());
    }
    // The reason and the next step.
    equal("the exit code", output.status.code(), Some(1))?;
    equal(&said, said.contains("CONFIG_FUNCTION_TRACER") || said.contains("modprobe vhost_net"), true)
}
