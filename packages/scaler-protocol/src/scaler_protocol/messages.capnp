@0xd3f0a6b1c2e94785;
# The messages of Scaler. A Message has the columns; the bytes of its `…Lengths` columns follow it in the same ZeroMQ
# frame, in the order of the fields. docs/protocol.md specifies senders, receivers, times, answers and limits.

struct Group {
  # The attributes that tasks of a batch share.
  function @0 :Data;          # BLAKE2b-128 of a byte for the kind, and the body, the reference or the name
  capabilityNames @1 :List(Text);
  capabilityValues @2 :List(Int64);
  priority @3 :Int32;
  retries @4 :UInt16;
  timeoutSeconds @5 :Float64; # from the start of the run; 0 = none
  encoding @6 :UInt8;
  serializer @7 :Data;        # function id of the serializer class; empty for the default
  streamOutput @8 :UInt8;     # 0 no, 1 yes, 2 with a prefix of task and worker per line
  depth @9 :UInt16;           # 0 for a client's own tasks, one more per nested submit
  speculate @10 :Bool;        # whether a run that takes too long may be given a second one beside it
  worker @11 :Data;           # the only worker that may run the tasks; empty: any
}

struct Hello {
  protocol @0 :UInt16;
  role @1 :UInt8;
  identity @2 :Data;
  incarnation @3 :UInt64;
  epoch @4 :UInt32;
  peerIncarnation @5 :UInt64;
  received @6 :UInt64;
  session @7 :UInt32;
  name @8 :Text;
  host @9 :Text;
  python @10 :Text;
  cloudpickle @11 :Text;
  workers @12 :UInt32;
  queueSize @13 :UInt32;
  capabilityNames @14 :List(Text);
  capabilityValues @15 :List(Int64);
  sessionKey @16 :Data;
  manager @17 :Text;          # the worker manager that started this agent, and the unit that the agent is
  unit @18 :Text;
  service @19 :UInt8;         # the one that the peer wants to reach
  sessionToken @20 :Data;
  sessionName @21 :Text;      # of a session that outlives its client; empty: it ends with the client
  consumableNames @22 :List(Text);    # capabilities of which all runs of the agent together have a quantity
  consumableTotals @23 :List(Int64);
  livesOnSeconds @24 :Float64;        # how long at most an agent's runs go on without a connection
  relay @25 :Bool;                    # this agent speaks for the agents of many hosts
  resultCredit @26 :UInt64;           # bytes of results above 16 KiB that this client takes with Done
}
struct Welcome {
  incarnation @0 :UInt64;
  received @1 :UInt64;
  resumed @2 :Bool;
  heartbeatSeconds @3 :Float64;
  storageAddress @4 :Text;
  sessionCredit @5 :UInt64;
  segmentDirectory @6 :Text;
  challenge @7 :Data;
  taskCredit @8 :UInt64;
  sessionToken @9 :Data;
  session @10 :UInt32;         # the number of the client's named session
  idsFrom @11 :UInt64;        # counts of task ids that this session has not used: from here …
  idsTo @12 :UInt64;          # … to here; 0: all
  fallbackAddress @13 :Text;  # where else an agent may connect
  schedulerIncarnation @14 :UInt64;   # of a relay: that of the scheduler, which clients know
}
struct Refused { reasons @0 :List(Text); inUse @1 :Bool; }
struct NeedHello {}
struct Heartbeat { sent @0 :UInt64; echo @1 :Bool; seconds @2 :Float64; busy @3 :Float64; }
struct Acknowledge {}
struct Goodbye { reason @0 :Text; objectsLeft @1 :UInt32; }

struct Submit {
  parent @0 :UInt64;
  groups @1 :List(Data);      # each entry is a separate Group message, so that a hop need not decode a known group
  tasks @2 :List(UInt64);
  taskGroups @3 :List(UInt16);
  callsLengths @4 :List(UInt32);
  stored @5 :List(UInt32);
  dependents @6 :List(UInt32);
  needs @7 :List(UInt64);
  functions @8 :List(Data);
  names @9 :List(Text);
  bodiesLengths @10 :List(UInt32);
  bodiesStored @11 :List(UInt32);
  consumers @12 :List(UInt32);
  intermediate @13 :List(UInt32);
  watched @14 :Bool;
  graph @15 :UInt64;
  graphSize @16 :UInt64;
}
struct Run {
  firstRun @0 :UInt64;
  groups @1 :List(Data);      # each entry is a separate Group message, so that a hop need not decode a known group
  tasks @2 :List(UInt64);
  taskGroups @3 :List(UInt16);
  attempts @4 :List(UInt32);   # runs of the task, this one included; retries and lost runs together exceed 16 bits
  callsLengths @5 :List(UInt32);
  stored @6 :List(UInt32);
  dependents @7 :List(UInt32);
  needs @8 :List(UInt64);
  inputsLengths @9 :List(UInt32);
  inputsStored @10 :List(UInt32);
  functions @11 :List(Data);
  names @12 :List(Text);
  bodiesLengths @13 :List(UInt32);
  bodiesStored @14 :List(UInt32);
  inputsAwaited @15 :List(UInt32);
  resultSizes @16 :List(UInt8);   # n: a result of up to 16 KiB * 2^n may be in Done; empty: 0 for all
}
struct Done {
  runs @0 :List(UInt64);
  tasks @1 :List(UInt64);
  statuses @2 :List(UInt8);
  resultsLengths @3 :List(UInt32);
  stored @4 :List(UInt32);
  profiles @5 :Data;
  agents @6 :List(Text);
  agentEnds @7 :List(UInt32);
}
struct Cancel { tasks @0 :List(UInt64); }
struct Release { tasks @0 :List(UInt64); freed @1 :UInt64; }
struct Withdraw { runs @0 :List(UInt64); }
struct Recall { count @0 :UInt32; }
struct Returned { runs @0 :List(UInt64); }
struct Blocked { runs @0 :List(UInt64); blocked @1 :List(Bool); }
struct NeedFunctions { functions @0 :List(Data); session @1 :UInt32; }
struct Functions {
  functions @0 :List(Data);
  names @1 :List(Text);
  bodiesLengths @2 :List(UInt32);
  bodiesStored @3 :List(UInt32);
}
struct NeedInputs { tasks @0 :List(UInt64); needs @1 :List(UInt64); }
struct Inputs {
  tasks @0 :List(UInt64);
  needs @1 :List(UInt64);
  statuses @2 :List(UInt8);
  resultsLengths @3 :List(UInt32);
  stored @4 :List(UInt32);
}
struct Reconcile {
  running @0 :List(UInt64);
  runs @1 :List(UInt64);
  wanted @2 :List(UInt64);
  finished @3 :List(UInt64);
  more @4 :Bool;
  takers @5 :List(UInt64);      # runs that take consumables, once for each of them
  takenNames @6 :List(Text);
  takenValues @7 :List(Int64);
}
struct NeedTasks { tasks @0 :List(UInt64); }
struct Resend { tasks @0 :List(UInt64); }
struct Output {
  tasks @0 :List(UInt64);
  streams @1 :List(UInt8);
  textsLengths @2 :List(UInt32);
}
struct AgentStatus {
  cpu @0 :Float64;
  rss @1 :UInt64;
  free @2 :UInt64;
  queued @3 :UInt32;
  names @4 :List(Text);
  pids @5 :List(UInt32);
  states @6 :List(UInt8);
  runs @7 :List(UInt64);
  cpus @8 :List(Float64);
  rsses @9 :List(UInt64);
  queues @10 :List(UInt32);
  deaths @11 :List(Text);
  loneTaskBytes @12 :UInt64;
  load @13 :Float64;
  diskFree @14 :UInt64;
  sharedFree @15 :UInt64;
  deathHosts @16 :List(Text);
  newestRun @17 :UInt64;
}
struct Drain { agent @0 :UInt64; pid @1 :UInt32; }
struct Resized { workers @0 :UInt32; }
struct Dump {}
struct DumpPart { left @0 :UInt64; data @1 :Data; }
# Between a worker manager and the scheduler; counts are of workers.
struct ManagerStatus {
  kind @0 :Text;
  maximum @1 :Int64;          # -1: no limit
  offerCapabilities @2 :List(Text);
  offerPythons @3 :List(Text);
  offerCloudpickles @4 :List(Text);
  unitSizes @5 :List(UInt32);
  pendingUnits @6 :List(Text);
  pendingOffers @7 :List(UInt32);
  failure @8 :Text;
  pausedSeconds @9 :Float64;
  startupSeconds @10 :Float64;
  offerQuantities @11 :List(Text);    # what the workers of a unit have together, as license=2
}
struct DesiredWorkers {
  workers @0 :List(UInt32);
  reason @1 :Text;
  units @2 :List(Text);
  unitStates @3 :List(UInt8);
}
struct ListWorkers { request @0 :UInt64; atLeast @1 :UInt32; }
struct WorkerList {
  request @0 :UInt64;
  hosts @1 :List(Text);
  workers @2 :List(UInt32);
  capabilities @3 :List(Text);
  managers @4 :List(Text);
}
struct ListProcesses { request @0 :UInt64; gone @1 :List(Data); }
struct ProcessList {
  request @0 :UInt64;
  pids @1 :List(UInt32);
  names @2 :List(Text);
  agents @3 :List(Data);
  hosts @4 :List(Text);
  left @5 :UInt64;
}
# Named sessions.
struct ListTasks { request @0 :UInt64; session @1 :Text; key @2 :Data; results @3 :Bool; }
struct TaskList {
  request @0 :UInt64;
  left @1 :UInt64;
  error @2 :Text;
  tasks @3 :List(UInt64);
  labels @4 :List(Text);
  functions @5 :List(Text);
  states @6 :List(UInt8);
  statuses @7 :List(UInt8);
  encodings @8 :List(UInt8);
  ages @9 :List(Float64);
  claimed @10 :List(Bool);
  resultsLengths @11 :List(UInt32);
  stored @12 :List(UInt32);
}
struct LabelTask { task @0 :UInt64; label @1 :Text; }
struct EndSession { request @0 :UInt64; session @1 :Text; key @2 :Data; }
struct ConfirmTasks { request @0 :UInt64; }
struct KeepSession { session @0 :UInt32; key @1 :Data; keep @2 :Bool; }
struct Ended { tasks @0 :List(UInt64); }
struct TaskCredit { tasks @0 :UInt64; }
struct Shutdown {}
struct ShutdownAnswer { accepted @0 :Bool; reason @1 :Text; }

struct PutObject {
  request @0 :UInt64;
  object @1 :Data;
  session @2 :UInt32;
  size @3 :UInt64;
  offset @4 :UInt64;
  partsLengths @5 :List(UInt32);
  version @6 :UInt64;
  keep @7 :Bool;
}
struct GetObject { request @0 :UInt64; object @1 :Data; offset @2 :UInt64; limit @3 :UInt32; }
struct DeleteObjects { objects @0 :List(Data); session @1 :UInt32; }
struct ObjectStored { request @0 :UInt64; object @1 :Data; error @2 :Text; version @3 :UInt64; }
struct ListObjects { request @0 :UInt64; }
struct ObjectList { request @0 :UInt64; objects @1 :List(Data); left @2 :UInt64; }
struct ObjectPart {
  request @0 :UInt64;
  object @1 :Data;
  found @2 :Bool;
  size @3 :UInt64;
  partsLengths @4 :List(UInt32);
  error @5 :Text;
  version @6 :UInt64;
}
struct HostProof { proof @0 :Data; lockFile @1 :Text; }
struct AllocateObject { request @0 :UInt64; object @1 :Data; session @2 :UInt32; size @3 :UInt64; }
struct ObjectAllocated { request @0 :UInt64; object @1 :Data; segment @2 :Text; error @3 :Text; }
struct SealObject { request @0 :UInt64; object @1 :Data; segment @2 :Text; }
struct MapObject { request @0 :UInt64; object @1 :Data; size @2 :UInt64; }
struct ObjectMapped {
  request @0 :UInt64;
  object @1 :Data;
  found @2 :Bool;
  segment @3 :Text;
  pin @4 :UInt64;
  error @5 :Text;
}
struct UnpinObjects { pins @0 :List(UInt64); inherited @1 :List(UInt64); }
struct RegisterReplicaServer { host @0 :Data; }
struct RegisterReplica {
  request @0 :UInt64;
  object @1 :Data;
  session @2 :UInt32;
  size @3 :UInt64;
  version @4 :UInt64;
  host @5 :Data;
}
struct CopyReplicas { objects @0 :List(Data); }
struct FetchReplica {
  object @0 :Data;
  session @1 :UInt32;
  size @2 :UInt64;
  version @3 :UInt64;
  keep @4 :Bool;
}
struct DropReplicas {
  objects @0 :List(Data);
  sessions @1 :List(UInt32);
  sizes @2 :List(UInt64);
  versions @3 :List(UInt64);
}

# Published for monitors, see docs/protocol.md.
struct MonitorStatus {
  incarnation @0 :UInt32;
  at @1 :Float64;
  address @2 :Text;
  snapshot @3 :Bool;
  uptime @4 :Float64;
  cpu @5 :Float64;
  rss @6 :UInt64;
  waiting @7 :UInt64;
  held @8 :UInt64;
  assigned @9 :UInt64;
  succeeded @10 :UInt64;
  raised @11 :UInt64;
  failed @12 :UInt64;
  cancelled @13 :UInt64;
  notFound @14 :UInt64;
  lostRuns @15 :UInt64;
  sentNames @16 :List(Text);
  sentCounts @17 :List(UInt64);
  receivedNames @18 :List(Text);
  receivedCounts @19 :List(UInt64);
  clientSessions @20 :List(UInt32);
  clientNames @21 :List(Text);
  clientHosts @22 :List(Text);
  clientTasks @23 :List(UInt64);
  agents @24 :List(UInt64);
  agentNames @25 :List(Text);
  agentHosts @26 :List(Text);
  agentWorkers @27 :List(UInt32);
  agentQueueSizes @28 :List(UInt32);
  agentCapabilities @29 :List(Text);
  agentRuntimes @30 :List(Text);
  agentCpus @31 :List(Float64);
  agentRsses @32 :List(UInt64);
  agentFree @33 :List(UInt64);
  agentAssigned @34 :List(UInt64);
  agentQueued @35 :List(UInt32);
  agentRoundTrips @36 :List(Float64);
  agentStatusAges @37 :List(Float64);
  workerAgents @38 :List(UInt64);
  workerNames @39 :List(Text);
  workerPids @40 :List(UInt32);
  workerStates @41 :List(UInt8);
  workerRuns @42 :List(UInt64);
  workerCpus @43 :List(Float64);
  workerRsses @44 :List(UInt64);
  workerQueues @45 :List(UInt32);
  functionNames @46 :List(Text);
  functionCounts @47 :List(UInt64);
  functionSeconds @48 :List(Float64);
  graphs @49 :List(UInt64);
  graphSessions @50 :List(UInt32);
  graphNodes @51 :List(UInt64);
  graphSucceeded @52 :List(UInt64);
  graphFailed @53 :List(UInt64);
  graphCancelled @54 :List(UInt64);
  graphAssigned @55 :List(UInt64);
  graphRunning @96 :List(UInt64);
  graphStartTimes @56 :List(Float64);
  graphEndTimes @57 :List(Float64);
  graphsEnded @58 :UInt64;
  agentManagers @59 :List(Text);
  agentUnits @60 :List(Text);
  agentDraining @61 :List(Bool);
  managers @62 :List(Text);
  managerKinds @63 :List(Text);
  managerHosts @64 :List(Text);
  managerMaximums @65 :List(Int64);
  managerDesired @66 :List(UInt32);
  managerJoined @67 :List(UInt32);
  managerStarting @68 :List(UInt32);
  managerDraining @69 :List(UInt32);
  managerReasons @70 :List(Text);
  managerFailures @71 :List(Text);
  managerPauses @72 :List(Float64);
  offerManagers @73 :List(Text);
  offerCapabilities @74 :List(Text);
  offerRuntimes @75 :List(Text);
  refusal @76 :Text;
  sessions @77 :UInt64;
  workerSeconds @78 :List(Float64);
  heartbeatSeconds @79 :Float64;
  cpuSeconds @80 :Float64;
  functionRuns @81 :List(UInt64);
  functionRunSeconds @82 :List(Float64);
  waitingCapabilities @83 :List(Text);
  waitingTasks @84 :List(UInt64);
  waitingShortages @95 :List(Text);
  durationBounds @85 :List(Float64);
  runBuckets @86 :List(UInt64);
  waitBuckets @87 :List(UInt64);
  runs @88 :UInt64;
  runSeconds @89 :Float64;
  waits @90 :UInt64;
  waitSeconds @91 :Float64;
  agentLoads @92 :List(Float64);
  agentDisksFree @93 :List(UInt64);
  agentSharedFree @94 :List(UInt64);
  unlistedAgents @97 :List(UInt64);
  unlistedRunning @98 :List(UInt64);
  unlistedBusy @99 :List(UInt64);
  unlistedBlocked @100 :List(UInt64);
  unlistedCpus @101 :List(Float64);
  unlistedRsses @102 :List(UInt64);
  exclusive @103 :UInt64;
  reservedAgents @104 :List(UInt64);
}
struct TaskEvents {
  groupNumbers @0 :List(UInt64);
  groupFunctions @1 :List(Text);
  groupSessions @2 :List(UInt32);
  groupPriorities @3 :List(Int32);
  groupCapabilities @4 :List(Text);
  groupRuntimes @5 :List(Text);
  since @6 :Float64;
  batches @7 :Data;
  tasks @8 :Data;
  statuses @9 :Data;
  profiles @10 :Data;
  textTimes @11 :List(Float64);
  textLevels @12 :List(UInt8);
  textTasks @13 :List(UInt64);
  texts @14 :List(Text);
  textNumbers @15 :List(UInt64);
  textKinds @16 :List(UInt8);
  textSubjects @17 :List(Text);
  printedNumbers @18 :List(UInt64);
  printedTasks @19 :List(UInt64);
  printedAttempts @20 :List(UInt32);
  printed @21 :List(Text);
  groupClients @22 :List(Text);
  edgeGraphs @23 :List(UInt64);
  edgeFirstTasks @24 :List(UInt64);
  edgeCounts @25 :List(UInt32);
  edges @26 :Data;
  runs @27 :Data;
  goesOn @28 :Bool;
}
struct AskWhy {
  task @0 :UInt64;
}
struct Reasons {
  task @0 :UInt64;
  sentences @1 :List(Text);
}
struct TakeProfile {
  request @0 :UInt64;
  function @1 :Text;
  seconds @2 :Float64;
  limit @3 :UInt32;
}
struct ProfilePart {
  request @0 :UInt64;
  stacks @1 :List(Text);
  counts @2 :List(UInt64);
  workers @3 :UInt32;
  left @4 :UInt32;
  problem @5 :Text;
}
struct MonitorHistory {
  failureNumbers @0 :List(UInt64);
  failureTimes @1 :List(Float64);
  failureTasks @2 :List(UInt64);
  failureFunctions @3 :List(Text);
  failureSessions @4 :List(UInt32);
  failureClients @5 :List(Text);
  failureAgents @6 :List(UInt64);
  failureAgentNames @7 :List(Text);
  failureStatuses @8 :List(UInt8);
  failureProfiles @9 :Data;
  failures @10 :List(Text);
  eventNumbers @11 :List(UInt64);
  eventTimes @12 :List(Float64);
  eventLevels @13 :List(UInt8);
  eventKinds @14 :List(UInt8);
  eventTasks @15 :List(UInt64);
  events @16 :List(Text);
  figureTimes @17 :List(Float64);
  figureEnded @18 :List(UInt64);
  figureWaiting @19 :List(UInt64);
  figureAssigned @20 :List(UInt64);
  figureRunning @21 :List(UInt64);
  figureCpus @22 :List(Float64);
  figureRsses @23 :List(UInt64);
  eventSubjects @24 :List(Text);
  printedNumbers @25 :List(UInt64);
  printedTasks @26 :List(UInt64);
  printedAttempts @27 :List(UInt32);
  printed @28 :List(Text);
  runFunctions @29 :List(Text);
  runHosts @30 :List(Text);
  runCounts @31 :List(UInt64);
  runSeconds @32 :List(Float64);
  runSquares @33 :List(Float64);
  runFailures @34 :List(Float64);
  growthFunctions @35 :List(Text);
  growthAgents @36 :List(UInt64);
  growthPids @37 :List(UInt32);
  growthPeaks @38 :List(UInt64);
  growthRuns @39 :List(UInt64);
  growthRaised @40 :List(UInt64);
  growthSizes @41 :List(UInt64);
  forgottenFunctions @42 :List(Text);
  forgottenTimes @43 :List(Float64);
}
struct NeedStorageStatus {}
struct StorageStatus {
  objects @0 :UInt64;
  writing @1 :UInt64;
  sessions @2 :UInt64;
  peers @3 :UInt64;
  bytes @4 :UInt64;
  memoryLimit @5 :UInt64;
  refused @6 :UInt64;
  writingBytes @7 :UInt64;
  pinnedBytes @8 :UInt64;
  recyclableBytes @9 :UInt64;
  spilled @10 :UInt64;
  spilledBytes @11 :UInt64;
  spilledBytesTotal @12 :UInt64;
  loadedBytesTotal @13 :UInt64;
  hits @14 :UInt64;
  misses @15 :UInt64;
  unknown @16 :UInt64;
  waiting @17 :UInt64;
  biggestNames @18 :List(Text);
  biggestSessions @19 :List(UInt32);
  biggestSizes @20 :List(UInt64);
  biggestInMemory @21 :List(Bool);
  hosts @22 :UInt64;
  replicas @23 :UInt64;
  replicaBytes @24 :UInt64;
  fetchedBytesTotal @25 :UInt64;
  biggestRemote @26 :List(Bool);
  copies @27 :UInt64;
  copyBytes @28 :UInt64;
  refusedLately @29 :UInt64;
  answerSeconds @30 :Float64;
}

struct Message {
  union {
    hello @0 :Hello;
    welcome @1 :Welcome;
    refused @2 :Refused;
    needHello @3 :NeedHello;
    heartbeat @4 :Heartbeat;
    acknowledge @5 :Acknowledge;
    goodbye @6 :Goodbye;
    submit @7 :Submit;
    run @8 :Run;
    done @9 :Done;
    cancel @10 :Cancel;
    release @11 :Release;
    withdraw @12 :Withdraw;
    recall @13 :Recall;
    returned @14 :Returned;
    blocked @15 :Blocked;
    needFunctions @16 :NeedFunctions;
    functions @17 :Functions;
    needInputs @18 :NeedInputs;
    inputs @19 :Inputs;
    reconcile @20 :Reconcile;
    needTasks @21 :NeedTasks;
    resend @22 :Resend;
    output @23 :Output;
    agentStatus @24 :AgentStatus;
    shutdown @25 :Shutdown;
    shutdownAnswer @26 :ShutdownAnswer;
    putObject @27 :PutObject;
    getObject @28 :GetObject;
    deleteObjects @29 :DeleteObjects;
    objectStored @30 :ObjectStored;
    objectPart @31 :ObjectPart;
    hostProof @32 :HostProof;
    allocateObject @33 :AllocateObject;
    objectAllocated @34 :ObjectAllocated;
    sealObject @35 :SealObject;
    mapObject @36 :MapObject;
    objectMapped @37 :ObjectMapped;
    unpinObjects @38 :UnpinObjects;
    ended @39 :Ended;
    monitorStatus @40 :MonitorStatus;
    taskEvents @41 :TaskEvents;
    needStorageStatus @42 :NeedStorageStatus;
    storageStatus @43 :StorageStatus;
    drain @44 :Drain;
    resized @45 :Resized;
    listObjects @46 :ListObjects;
    objectList @47 :ObjectList;
    registerReplicaServer @48 :RegisterReplicaServer;
    registerReplica @49 :RegisterReplica;
    fetchReplica @50 :FetchReplica;
    dropReplicas @51 :DropReplicas;
    managerStatus @52 :ManagerStatus;
    desiredWorkers @53 :DesiredWorkers;
    listWorkers @54 :ListWorkers;
    workerList @55 :WorkerList;
    dump @56 :Dump;
    dumpPart @57 :DumpPart;
    taskCredit @58 :TaskCredit;
    listTasks @59 :ListTasks;
    taskList @60 :TaskList;
    labelTask @61 :LabelTask;
    endSession @62 :EndSession;
    keepSession @63 :KeepSession;
    confirmTasks @64 :ConfirmTasks;
    copyReplicas @65 :CopyReplicas;
    monitorHistory @66 :MonitorHistory;
    askWhy @67 :AskWhy;
    reasons @68 :Reasons;
    listProcesses @69 :ListProcesses;
    processList @70 :ProcessList;
    takeProfile @71 :TakeProfile;
    profilePart @72 :ProfilePart;
  }
}
