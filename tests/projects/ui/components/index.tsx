import { useStreamContext } from "@langchain/langgraph-sdk/react-ui";
import { again } from "components/words";
import { greeting } from "greetings";
import { useState } from "react";
import "./styles.css";

interface Values {
  city: string;
}

function Weather(props: { city: string }) {
  const { values } = useStreamContext<Values>();
  const [clicks, setClicks] = useState(0);
  return (
    <button type="button" className="mine p-[17px]" onClick={() => setClicks(clicks + 1)}>
      {`${greeting} sun in ${props.city}, ${values.city} ${again}, ${clicks} clicks`}
    </button>
  );
}

export default { weather: Weather };
