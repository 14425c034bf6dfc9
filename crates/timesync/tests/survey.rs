//! A survey of scripted daemons.

use latpath_testkit::{waits, PtpDaemon, PtpScript};
use latpath_timesync::chrony::ChronyAddress;
use latpath_timesync::{ClockReport, LinkState, PortState, Survey, SurveyOptions};
use std::path::Path;

fn survey(sockets: &[&Path]) -> Survey {
    let chrony = ChronyAddress { port: 1, socket: "/nowhere/chronyd.sock".into() };
    Survey::new(SurveyOptions { sockets: sockets.iter().map(|path| (*path).into()).collect(), chrony })
}

fn daemon(place: &Path, name: &str, script: PtpScript) -> PtpDaemon {
    PtpDaemon::start(&place.join(name), script)
}

#[test]
fn a_slave_is_read_in_its_domain() {
    let place = tempfile::tempdir().unwrap();
    let script = PtpScript { domain: 93, transport_specific: 1, offset_ns: -75, ..PtpScript::default() };
    let daemon = daemon(place.path(), "ptp4lro", script);
    let report = survey(&[daemon.path()]).read();
    let [instance] = &report.ptp[..] else { panic!("{report:?}") };
    assert_eq!((instance.domain, instance.transport_specific, instance.state), (93, 1, LinkState::Following));
    assert_eq!((instance.offset_ns, instance.path_delay_ns, instance.bound_ns), (Some(-75), 200, Some(275)));
    assert_eq!((instance.grandmaster_class, instance.grandmaster_accuracy, instance.utc_offset_s), (6, 0x21, Some(37)));
    let port = &instance.ports[0];
    assert_eq!((port.device.as_str(), port.state, port.in_hardware), ("lo", PortState::Slave, Some(false)));
    assert!(port.rx_sync.is_some_and(|n| n > 0) && port.tx_delay_requests.is_some());
    assert_eq!(report.system_bound_ns, Some(275), "software timestamps: ptp4l steers the system clock");
    assert_eq!(report.root.as_deref(), Some("grandmaster 020000.fffe.000009, domain 93"));
}

#[test]
fn two_sockets_of_one_daemon_are_one_instance_and_two_daemons_are_two() {
    let place = tempfile::tempdir().unwrap();
    let other = PtpScript { identity: [7; 8], domain: 0, ..PtpScript::default() };
    let daemons = [("ptp4lro", PtpScript::default()), ("ptp4l", PtpScript::default()), ("ptp4l.1.socket", other)]
        .map(|(name, script)| daemon(place.path(), name, script));
    let mut survey = survey(&daemons.each_ref().map(PtpDaemon::path));
    let sockets = |report: &ClockReport| report.ptp.iter().map(|p| p.socket.clone()).collect::<Vec<_>>();
    let want = ["ptp4lro", "ptp4l.1.socket"].map(|name| place.path().join(name).display().to_string());
    assert_eq!(sockets(&survey.read()), want);
    assert_eq!(sockets(&survey.read()), want);
}

#[test]
fn states_and_silence_are_followed_and_the_bound_keeps_the_largest_offset() {
    let place = tempfile::tempdir().unwrap();
    let daemon = daemon(place.path(), "ptp4l", PtpScript::default());
    let mut survey = survey(&[daemon.path()]);
    survey.read();
    daemon.set(|script| script.offset_ns = 5_000);
    assert_eq!(survey.read().system_bound_ns, Some(5_200));
    daemon.set(|script| script.offset_ns = 1);
    assert_eq!(survey.read().system_bound_ns, Some(5_200), "of the last seconds");
    daemon.set(|script| script.port_state = 2);
    let report = survey.read();
    assert_eq!((report.ptp[0].state, report.system_bound_ns), (LinkState::Faulty, None));
    daemon.set(|script| script.answers = false);
    let report = survey.read();
    assert!(report.ptp[0].is_silent && report.ptp[0].offset_ns == Some(1), "{report:?}");
    daemon.set(|script| (script.answers, script.port_state, script.measures) = (true, 9, false));
    waits::until("no new measurement is holdover", || survey.read().ptp[0].state == LinkState::Holdover).unwrap();
}

#[test]
fn a_dead_socket_and_garbage_are_named_and_harm_nothing() {
    let place = tempfile::tempdir().unwrap();
    let dead = place.path().join("dead");
    drop(std::os::unix::net::UnixDatagram::bind(&dead).unwrap());
    let garbage = PtpScript { garbage: Some(vec![0xd; 1400]), ..PtpScript::default() };
    let daemon = daemon(place.path(), "ptp4l", garbage);
    let missing = place.path().join("missing");
    let report = survey(&[&dead, daemon.path(), &missing]).read();
    assert!(report.ptp.is_empty());
    for (path, why) in
        [(&dead, "has ended"), (&daemon.path().to_owned(), "does not answer"), (&missing, "no such socket")]
    {
        let note = report.notes.iter().find(|note| note.contains(&path.display().to_string()));
        assert!(note.is_some_and(|note| note.contains(why)), "{why}: {:?}", report.notes);
    }
}

#[test]
fn a_daemon_that_starts_again_is_found_again() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("ptp4l");
    let first = PtpDaemon::start(&path, PtpScript::default());
    let mut survey = survey(&[&path]);
    assert_eq!(survey.read().ptp.len(), 1);
    drop(first);
    assert_eq!(survey.read().ptp.len(), 0);
    let _second = PtpDaemon::start(&path, PtpScript { identity: [5; 8], ..PtpScript::default() });
    waits::until("the new daemon is found", || survey.read().ptp.len() == 1).unwrap();
}
