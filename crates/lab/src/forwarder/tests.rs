use super::*;

/// Returns an address that was free a moment ago.
fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Returns two nodes behind a forwarder, and the listener of the second.
fn pair() -> (Forwarder, [Node; 2], TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let first = Node { broadcast: free(), listens: free() };
    let second = Node { broadcast: free(), listens: listener.local_addr().unwrap() };
    (Forwarder::start(vec![first, second]).unwrap(), [first, second], listener)
}

/// Connects the first node to the second, and returns both ends.
fn connect(nodes: &[Node; 2], listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut near = TcpStream::connect(nodes[1].broadcast).unwrap();
    let first = Initiate::of(nodes[0].broadcast);
    near.write_all(&first).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    let mut read = vec![0; first.len()];
    far.read_exact(&mut read).unwrap();
    assert_eq!(read, first, "the node that is connected to has all bytes");
    (near, far)
}

/// Returns the time that these bytes take in one direction.
fn took(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) -> Duration {
    let began = Instant::now();
    let mut read = vec![0; bytes.len()];
    thread::scope(|scope| {
        scope.spawn(|| from.write_all(bytes).unwrap());
        to.read_exact(&mut read).unwrap();
    });
    assert!(read == bytes, "they arrive in their order");
    began.elapsed()
}

#[test]
fn bytes_are_late_by_the_distance_both_ways() {
    let (forwarder, nodes, listener) = pair();
    let (near, far) = connect(&nodes, &listener);
    forwarder.place(&spelt("0-1=100~10").unwrap()).unwrap();
    for (from, to) in [(&near, &far), (&far, &near)] {
        assert!(took(from, to, b"a message") >= Duration::from_millis(100));
    }
    forwarder.place(&[]).unwrap();
    let many: Vec<u8> = (0..4_000_000_u32).map(|byte| (byte % 251) as u8).collect();
    took(&near, &far, &many);
    drop(near);
    assert_eq!((&far).read(&mut [0]).unwrap(), 0, "the end is passed on");
}

#[test]
fn only_nodes_are_forwarded() {
    let (_, nodes, listener) = pair();
    for bytes in [Initiate::of(free()), b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
        let mut stranger = TcpStream::connect(nodes[1].broadcast).unwrap();
        stranger.write_all(&bytes).unwrap();
        // The forwarder closes the connection, or resets it because it did not read everything.
        assert!(matches!(stranger.read(&mut [0]), Ok(0) | Err(_)));
    }
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err(), "no stranger reaches a node");
}

#[test]
fn the_door_takes_distances_and_refuses_others() {
    let (forwarder, ..) = pair();
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = door.local_addr().unwrap().to_string();
    let serving = forwarder.clone();
    thread::spawn(move || serving.serve(&door));
    let placed = || forwarder.shared.distance([Site(1), Site(0)]).map(|it| it.least);
    send_distances(&address, "1-0=5").unwrap();
    assert_eq!(placed(), Some(Duration::from_millis(5)));
    for (line, why) in [("0-2=1", "last site is 1"), ("0-1=1,1-0=2", "another"), ("nonsense", "two sites")] {
        let refused = format!("{:#}", send_distances(&address, line).unwrap_err());
        assert!(refused.contains(why), "{refused}");
        assert_eq!(placed(), Some(Duration::from_millis(5)), "{line} changes nothing");
    }
    for unended in [&b""[..], b"0-1=1"] {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(unended).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(placed(), Some(Duration::from_millis(5)), "{answer}");
    }
    send_distances(&address, "").unwrap();
    assert_eq!(placed(), None);
    assert!(send_distances(&free().to_string(), "").is_err());
}

#[test]
fn a_node_is_two_addresses() {
    let node: Node = "127.0.0.1:7000=127.0.1.1:7000".parse().unwrap();
    assert_eq!(node.listens, "127.0.1.1:7000".parse().unwrap());
    for text in ["", "127.0.0.1:7000", "127.0.0.1:7000=127.0.0.1:7000", "a:1=b:2"] {
        assert!(text.parse::<Node>().is_err(), "{text}");
    }
}
