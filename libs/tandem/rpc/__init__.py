"""gRPC: generated code, codec, error table, server, clients. Only servicers know protobuf beside it."""
