"""Links: what a connection promises, on the connecting side (Uplink) and on the accepting side (Hub). Pure, no IO.

A connection is an *epoch*: the shell opens one, says so with `opened`, and never lets ZeroMQ reconnect behind our
back. The first message of an epoch is Hello; it is answered by Welcome or Refused. Between two incarnations messages
are numbered (scaler_io.links.streams); a new epoch of the same two sends the unacknowledged suffix again, duplicates
are dropped, so the cores see every message exactly once and in order as long as both processes live. A peer that is
another incarnation than before starts a fresh stream, and the core hears that (`LinkUp.resumed`, `PeerJoined.resumed`
are False). Both sides agree on which stream it is: where the Welcome that replaced a stream by a new one may have been
lost, the new one is not resumed either.

    Uplink:  DOWN --opened--> GREETING --Welcome--> UP --broken / NeedHello / silence--> DOWN
             GREETING --Refused--> REFUSED (final); DOWN for longer than the timeout --> LinkLost, once

Both sides beat once per heartbeat interval; anything received is a sign of life. A peer whose route is gone is lost
after its *grace*, a silent one after its *patience*, one that lets more than KEPT_LIMIT bytes pile up after
STUCK_SECONDS without an acknowledgement. The largest message does not count: who gets it may not have asked for it.
Answers that are not kept are counted until the peer returns a heartbeat, and a connection by which too much of anything
stands unread is closed (`Hub.cuts`): what it would leave in the transport is bounded by nothing else.
"""
