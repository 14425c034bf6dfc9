//! Plans and directories that cannot be used.

use latpath_testkit::{equal, latpath, trial, Failed, Trial};
use std::fs;

pub fn trials() -> Vec<Trial> {
    vec![
        trial("a_wrong_plan_is_refused_with_the_line_or_the_part", &[], wrong_plans),
        trial("a_changed_plan_needs_another_directory_or_force", &[], changed_plan),
        trial("the_printed_example_is_a_plan", &[], example),
        trial("a_plan_names_guests_of_other_machines", &[], machines),
    ]
}

const DIRECTION: &str = "[[direction]]\nname = 'in'\nstream = 'svid:MU01'\n";

fn run(folder: &std::path::Path, words: &str) -> Result<(Option<i32>, String), Failed> {
    let out = latpath(&format!("study run plan.toml -o study {words}")).current_dir(folder).output()?;
    Ok((out.status.code(), String::from_utf8_lossy(&out.stderr).into_owned()))
}

fn wrong_plans() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    for (plan, words) in [
        ("name = 'a'\nrepeat = 3\n", "plan.toml, line 2: unknown field `repeat`"),
        ("name = 'a'\n", "no [[direction]]"),
        ("name = 'a'\nduration = 'soon'\n", "line 2: \"soon\": write a time, e.g. 200us"),
        (&format!("name = 'a'\n{DIRECTION}{DIRECTION}"), "direction \"in\" is named twice"),
        (&format!("name = 'a'\n{DIRECTION}[[topology]]\nname = 'b'\nup = 'x'\n"), "topology b: up without down"),
        (&format!("name = 'a'\n{DIRECTION}[[load]]\nname = '../x'\n"), "load \"../x\""),
        (
            &format!("name = 'a'\nmachines = {{ \"relay@b\" = 'vsock:42:7000' }}\n{DIRECTION}"),
            "machines: relay@b: there is no machine \"b\"",
        ),
        (&format!("name = 'a'\nlimits = ['total:p99']\n{DIRECTION}"), "limits: "),
        ("name = 'a'\n[[direction]]\nname = 'in'\nstream = 'svid:{mu}'\n", "no variable \"mu\""),
    ] {
        fs::write(folder.path().join("plan.toml"), plan)?;
        let (code, said) = run(folder.path(), "")?;
        equal(&said, (code, said.contains(words)), (Some(2), true))?;
        equal("a directory was made", folder.path().join("study").exists(), false)?;
    }
    fs::remove_file(folder.path().join("plan.toml"))?;
    let (code, said) = run(folder.path(), "")?;
    equal(&said, (code, said.contains("plan.toml: cannot be read")), (Some(1), true))
}

fn changed_plan() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let write = |head: &str| fs::write(folder.path().join("plan.toml"), format!("name = 'a'\n{head}\n{DIRECTION}"));
    write("repetitions = 2\nseed = 5")?;
    let (code, said) = run(folder.path(), "--dry-run")?;
    equal(&said, (code, said.contains("2 of 2 trials to make")), (Some(0), true))?;
    // A plan with more repetitions, or with other limits for the same trials, still counts as the same plan.
    write("repetitions = 3\nlimits = ['lost<=0']")?;
    let (code, said) = run(folder.path(), "--dry-run")?;
    equal(&said, (code, said.contains("3 of 3 trials") && said.contains("seed 5")), (Some(0), true))?;
    for (head, what) in [
        ("repetitions = 3\nduration = '1s'", "duration differs"),
        ("repetitions = 2", "2 repetitions instead of 3"),
        ("repetitions = 3\nseed = 6", "seed 6 instead of 5"),
    ] {
        write(head)?;
        let (code, said) = run(folder.path(), "--dry-run")?;
        equal(&said, (code, said.contains(what) && said.contains("--force")), (Some(2), true))?;
    }
    let (code, said) = run(folder.path(), "--dry-run --force")?;
    equal(&said, (code, said.contains("seed 6")), (Some(0), true))
}

fn machines() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let machines = "machines = { b = 'ssh:root@b', 'relay@b' = 'vsock:42:7000' }";
    fs::write(folder.path().join("plan.toml"), format!("name = 'a'\n{machines}\n{DIRECTION}"))?;
    let (code, said) = run(folder.path(), "--dry-run")?;
    equal(&said, code, Some(0))
}

fn example() -> Result<(), Failed> {
    let folder = tempfile::tempdir()?;
    let printed = latpath("study example").output()?;
    fs::write(folder.path().join("plan.toml"), &printed.stdout)?;
    let (code, said) = run(folder.path(), "--dry-run")?;
    equal(&said, (code, said.contains("20 of 20 trials")), (Some(0), true))
}
