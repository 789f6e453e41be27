CREATE TABLE documents (key text PRIMARY KEY, value text NOT NULL);

CREATE TRIGGER fenced BEFORE INSERT OR UPDATE OR DELETE ON documents
  FOR EACH ROW EXECUTE FUNCTION fence_required('key');
