//! A host whose name server does not answer: libtorch looks up the name of each address that a store hears
//! from, five seconds each, while the store does not respond. If the system does not allow setting the name
//! server (it needs root), the test says so, and tests nothing.

use std::io::Write as _;
use std::net::UdpSocket;
use std::time::Duration;

use super::job::Job;

/// An unused address. Name servers are always queried at port 53.
const SERVER: &str = "127.0.53.7";

#[test]
fn nobody_is_asked_for_the_names_of_processes() {
    let server = match UdpSocket::bind((SERVER, 53)) {
        Ok(server) => server,
        Err(why) => {
            println!("not tested, as no name server can be played here: {why}");
            return;
        }
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "nameserver {SERVER}").unwrap();
    let path = file.path().to_str().unwrap();
    let script = format!("mount --bind {path} /etc/resolv.conf && exec \"$@\"");
    let by = ["unshare", "--mount", "sh", "-c", &script, "sh"];
    if !std::process::Command::new(by[0])
        .args(&by[1..])
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        println!("not tested, as no mount namespace can be made here");
        return;
    }
    for ended in Job::start_within(&by, "tags", 3).all() {
        assert_eq!(ended.code(), Some(0), "{}", ended.printed);
    }
    server
        .set_read_timeout(Some(Duration::from_millis(1)))
        .unwrap();
    let asked = server.recv_from(&mut [0; 512]);
    assert!(asked.is_err(), "a name server was asked: {asked:?}");
}
