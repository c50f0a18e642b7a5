"""gRPC: generated code, codec, error table, server and clients. The only place, beside servicers, that knows protobuf."""
