"""Links: the protocol state of connections, on the connecting side (Uplink) and on the accepting side (Hub). No IO.

A connection is an *epoch*: the shell opens one, reports it with `Uplink.opened`, and never lets ZeroMQ reconnect on its
own. The first message of an epoch is Hello; the answer is Welcome or Refused. Messages between two incarnations are
numbered (scaler_io.links.streams). A new epoch of the same two incarnations sends the unacknowledged messages again and
drops duplicates, so the cores receive every message exactly once and in order as long as both processes live. A peer
with another incarnation than before starts a new stream, and the core is told so: `LinkUp.resumed` and
`PeerJoined.resumed` are False. Both sides must agree on the stream: if the Welcome that began a new stream may have
been lost, that stream is not resumed either.

    Uplink:  DOWN --opened--> GREETING --Welcome--> UP --broken / NeedHello / silence--> DOWN
             GREETING --Refused--> REFUSED (final); no service for longer than the timeout --> LinkLost

A service is there from its first valid message after Welcome on: one that says Welcome and then breaks the protocol, or
says nothing, is lost after the timeout however often it does so. A link that is UP is not lost while it waits for that
message. LinkLost comes once, and again a timeout later if there was a Welcome meanwhile.

The hub sends heartbeats, which its peers return; the more peers, the longer the interval. A peer that has missed one
sends its own. Every received message is a sign of life. The hub gives up a peer whose route has been broken for its
*grace* time, one that has been silent for its *silence* time, and one that has acknowledged nothing for STUCK_SECONDS
while more than KEPT_LIMIT bytes wait for it. The largest message is not counted, because its receiver may not have
asked for it. Unnumbered messages are not kept, but counted until the peer returns a heartbeat. If a peer leaves too
many of them unread, its connection is closed (`Hub.cuts`): nothing else bounds the memory that they take in the
transport.
"""
