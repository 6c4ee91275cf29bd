use std::ffi::c_int;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::{Group, Store};

const LIMIT: Duration = Duration::from_secs(20);

unsafe extern "C" {
    fn signal(number: c_int, handler: usize) -> usize;
}

const SIGPIPE: c_int = 13;
const DEFAULT: usize = 0;
const IGNORED: usize = 1;

/// The server of a store on a free port.
fn served() -> Store {
    Store::open("127.0.0.1", 0, true, LIMIT).unwrap()
}

fn client(server: &Store) -> Store {
    Store::open("127.0.0.1", server.port().unwrap(), false, LIMIT).unwrap()
}

/// Two processes' ends of a group, here on two threads.
fn pair(store: &Store) -> (Group, Group) {
    let address = Some("127.0.0.1".parse().unwrap());
    let other = store.another().unwrap();
    let join = move |store: &Store, rank| Group::join(store, rank, 2, address, LIMIT).unwrap();
    let first = thread::spawn(move || join(&other, 0));
    let second = join(store, 1);
    (first.join().unwrap(), second)
}

#[test]
fn the_first_value_of_a_key_stays() {
    let server = served();
    let client = client(&server).below("run").unwrap();
    let own = server.below("run").unwrap();
    assert_eq!(own.set_first("end", b"one").unwrap(), b"one");
    assert_eq!(client.set_first("end", b"two").unwrap(), b"one");
    assert_eq!(client.get("end").unwrap(), b"one");
    assert_eq!(client.add("count", 2).unwrap(), 2);
    assert_eq!(own.add("count", 0).unwrap(), 2);
    assert!(server.has(&["run/end".to_owned()]).unwrap());
    assert!(!client.has(&["other".to_owned()]).unwrap());
}

#[test]
fn a_wait_ends_with_the_key_or_with_its_time() {
    let server = served();
    let waiter = client(&server);
    let keys = ["a".to_owned(), "b\u{e4}".to_owned()];
    assert!(!waiter.wait(&keys, Duration::from_millis(20)).unwrap());
    let waiting = thread::spawn(move || waiter.wait(&keys, LIMIT));
    server.set("a", b"").unwrap();
    server.set("b\u{e4}", &[0, 255]).unwrap();
    assert!(waiting.join().unwrap().unwrap());
    assert_eq!(server.get("b\u{e4}").unwrap(), [0, 255]);
}

#[test]
fn a_store_that_is_not_there_is_an_error() {
    let port = served().port().unwrap();
    let error = Store::open("127.0.0.1", port, false, Duration::from_millis(300)).unwrap_err();
    assert!(!error.message().contains("frame #"), "{error}");
    let zero = Store::open("127.0.0.1\0", port, false, LIMIT).unwrap_err();
    assert!(zero.message().contains("zero byte"), "{zero}");
}

/// It once listened on all addresses, and by IPv6: others could reach it, and connections came from
/// `::ffff:127.0.0.1`, whose name libtorch asks a name server for.
#[test]
fn a_store_at_a_loopback_address_is_there_alone() {
    let server = served();
    let port = server.port().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_ok());
    let elsewhere = TcpStream::connect(("127.0.0.2", port)).unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::ConnectionRefused);
    assert!(TcpStream::connect(("::1", port)).is_err());
}

#[test]
fn messages_are_told_apart_by_their_tags() {
    let server = served();
    let (one, two) = pair(&server);
    let sent: Vec<_> = (0..4)
        .map(|tag| {
            let tensor = Tensor::full([1000], i64::from(tag), (Kind::Float, Device::Cpu));
            one.send(&tensor, 1, tag).unwrap()
        })
        .collect();
    for tag in (0..4).rev() {
        let tensor = Tensor::zeros([1000], (Kind::Float, Device::Cpu));
        assert!(two.receive(&tensor, 0, tag).unwrap().wait(LIMIT).unwrap());
        assert_eq!(tensor.double_value(&[7]), f64::from(tag));
    }
    for work in sent {
        assert!(work.wait(LIMIT).unwrap());
    }
}

#[test]
fn an_abort_frees_whoever_waits() {
    let server = served();
    let (_one, two) = pair(&server);
    let tensor = Tensor::zeros([8], (Kind::Float, Device::Cpu));
    let work = two.receive(&tensor, 0, 0).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| work.wait(LIMIT));
        work.abort().unwrap();
        assert!(!waiting.join().unwrap().unwrap());
    });
}

/// By default, a write to a closed connection silently ends the process.
#[test]
fn a_broken_pipe_is_an_error_and_no_end() {
    let handler = |handler| {
        // SAFETY: neither handler runs any code; the tests of this program want it ignored.
        unsafe { signal(SIGPIPE, handler) }
    };
    handler(DEFAULT);
    let server = served();
    assert_eq!(handler(DEFAULT), IGNORED, "a store sets it");
    let (one, two) = pair(&server);
    assert_eq!(handler(IGNORED), IGNORED, "a group sets it");
    let tensor = Tensor::zeros([8 << 20], (Kind::Float, Device::Cpu));
    let sent = one.send(&tensor, 1, 0).unwrap();
    drop(two);
    assert!(sent.wait(LIMIT).is_err());
    // Nobody reads any more: later sends must only give an error, too.
    let later = one.send(&tensor, 1, 1);
    assert!(later.and_then(|work| work.wait(LIMIT)).is_err());
}
