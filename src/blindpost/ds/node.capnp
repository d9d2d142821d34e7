@0x9d3b6e17f0c25a84;
# The delivery service as its callers see it. A client needs nothing but this file, a Cap'n Proto RPC
# library and a byte stream to the service: TLS 1.3 over TCP or one bidirectional QUIC stream, ALPN "capnp".
# The service's bootstrap capability is a NodeService.
#
# Wire version 0 has no channels: `channelId` is read as empty. Version 1 is current.
# Times are milliseconds. Refusals are exceptions of type `failed`; `overloaded` means: later.

struct Auth @0xc1a7f25b9e604d38 {
  version @0 :UInt16;      # 1: accessToken is looked up
  accessToken @1 :Data;    # bound to one identity key
  deviceId @2 :Data;       # free; the service does not keep it
}

struct Delivery @0xe8240f6d5b91c7a3 {
  id @0 :Data;             # for ack; stays the same when the payload is delivered again
  payload @1 :Data;
}

interface NodeService @0xa6f4183d72e95bc0 {
  uploadKeyPackage @0 (identityKey :Data, package :Data, auth :Auth) -> (fingerprint :Data);
  # Adds a key package (at most 1,048,576 bytes) of the caller. Returns its SHA-256.

  fetchKeyPackage @1 (identityKey :Data, auth :Auth) -> (package :Data);
  # Takes the oldest key package of that identity; nobody else gets it. Empty if there is none.

  enqueue @2 (recipientKey :Data, payload :Data, channelId :Data, version :UInt16, auth :Auth) -> ();
  # Appends. When it returns, the payload is durable.

  fetch @3 (recipientKey :Data, channelId :Data, version :UInt16, auth :Auth)
      -> (payloads :List(Data));
  # Takes what is there, oldest first, as much as fits in one answer. It leaves the queue when the caller
  # releases the answer (Finish), and stays in its place if the connection ends before.

  fetchWait @4 (recipientKey :Data, channelId :Data, version :UInt16, timeoutMs :UInt64, auth :Auth)
      -> (payloads :List(Data));
  # As fetch, but waits for something to come.

  lease @5 (recipientKey :Data, channelId :Data, version :UInt16, timeoutMs :UInt64, leaseMs :UInt32,
      maxPayloads :UInt32, auth :Auth) -> (deliveries :List(Delivery));
  # As fetchWait, but what is returned stays in the queue, given to nobody else, until it is acknowledged,
  # or the lease or the connection is over. 0 stands for the service's default in leaseMs and maxPayloads.

  ack @6 (recipientKey :Data, channelId :Data, version :UInt16, ids :List(Data), auth :Auth) -> ();
  # Removes deliveries for good. May be repeated, also on another connection and after a restart.
}
